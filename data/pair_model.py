"""The small pairs as PyTorch modules: a Qwen3 or a Qwen3.5 target, and the DFlash drafter that proposes tokens for it. The other
kinds of drafter are in pair_heads.py.

All keep the weights of their layers in stacks, one tensor [layers that have it, out, in] a kind, in float32; a pass runs in the
dtype that it is given (the residual stream, the norms and the delta nets' states always in float32). Rope angles are float32
throughout: a bf16 cast of the frequencies moves logits visibly. save() and load() speak the Hugging Face layout.

Letters: b batch, T tokens, E hidden size, H query heads, G key/value heads, D head size, N anchors, B rows of a block, P proposals
of one, V vocabulary.
"""
import json
import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from pair_delta import delta_chunks, delta_step

EVERY = {"gate": "mlp.gate_proj.weight", "up": "mlp.up_proj.weight", "down": "mlp.down_proj.weight",
         "norm_1": "input_layernorm.weight", "norm_2": "post_attention_layernorm.weight"}
ATTENTION = {name: "self_attn.%s.weight" % theirs for name, theirs in (
    ("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("o", "o_proj"), ("q_norm", "q_norm"), ("k_norm", "k_norm"))}
DELTA = {name: "linear_attn." + theirs for name, theirs in (
    ("qkv", "in_proj_qkv.weight"), ("z", "in_proj_z.weight"), ("alpha", "in_proj_a.weight"), ("beta", "in_proj_b.weight"),
    ("conv", "conv1d.weight"), ("a_log", "A_log"), ("dt", "dt_bias"), ("delta_norm", "norm.weight"), ("out", "out_proj.weight"))}
NOT_MATRICES = ("conv", "alpha", "beta")  # stacks of small rows, which AdamW trains


def rms_norm(x, weight, dtype, eps=1e-6):
    x = x.float()
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight).to(dtype)


def rope(x, cos, sin):
    """x [..., D] float32; cos, sin broadcast to [..., R/2]. Pairs are (i, i + R/2) of the first R dimensions; the rest stay."""
    u, v, rest = x.split([cos.shape[-1], cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]], -1)
    return torch.cat([u * cos - v * sin, v * cos + u * sin, rest], -1)


class Stack(nn.Module):
    """What targets and drafter share: weights, projections, the MLP, files."""
    gated, plus = False, 0.0  # an output gate beside each query; what norms add to their weight
    every = EVERY             # what every layer has

    def __init__(self, config):
        super().__init__()
        self.config = config
        E, H, G, D, M, L = (config[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
                                                "intermediate_size", "num_hidden_layers"))
        self.H, self.G, self.D, self.L = H, G, D, L
        self.delta = [kind == "linear_attention" for kind in config["layer_types"]]
        self.row = [sum(d == self.delta[i] for d in self.delta[:i]) for i in range(L)]  # a layer's place in the stacks of its kind
        attending = L - sum(self.delta)
        self.matrices({"q": (H * D * (1 + self.gated), E), "k": (G * D, E), "v": (G * D, E), "o": (E, H * D)}, attending)
        self.matrices({"gate": (M, E), "up": (M, E), "down": (E, M)}, L)
        for name, layers, size in (("q_norm", attending, D), ("k_norm", attending, D), ("norm_1", L, E), ("norm_2", L, E)):
            setattr(self, name, nn.Parameter(torch.ones(layers, size) - self.plus))
        self.norm = nn.Parameter(torch.ones(E) - self.plus)
        turned = int(D * config["rope_parameters"].get("partial_rotary_factor", 1))
        theta = config["rope_parameters"]["rope_theta"]
        frequency = theta ** (-torch.arange(0, turned, 2, dtype=torch.float64) / turned)
        angle = torch.arange(config["max_position_embeddings"], dtype=torch.float64)[:, None] * frequency
        self.register_buffer("cos", angle.cos().float(), persistent=False)  # [positions, turned / 2]
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def matrices(self, shapes, layers):
        for name, (rows, columns) in shapes.items():
            start = torch.zeros if name in ("o", "down", "out") else torch.randn  # residual branches start silent
            setattr(self, name, nn.Parameter(start(layers, rows, columns) * 0.5 * columns ** -0.5))

    def normed(self, x, name, layer, dtype):
        return rms_norm(x, getattr(self, name)[layer] + self.plus, dtype)

    def final(self, x, dtype):
        return rms_norm(x, self.norm + self.plus, dtype)

    def heads(self, x, name, layer, count, positions):
        """[..., E] -> [..., count, D], normed per head and rotated; positions index the tables and have x's leading shape."""
        y = F.linear(x, getattr(self, name)[self.row[layer]].to(x.dtype)).unflatten(-1, (count, self.D))
        return self.turned(y, name, layer, positions)

    def turned(self, y, name, layer, positions):
        z = self.normed(y, name + "_norm", self.row[layer], torch.float32)
        return rope(z, self.cos[positions].unsqueeze(-2), self.sin[positions].unsqueeze(-2)).to(y.dtype)

    def queries(self, n, i, positions):
        """-> [..., H, D], what is done with the heads' output."""
        if not self.gated:
            return self.heads(n, "q", i, self.H, positions), lambda y: y
        y = F.linear(n, self.q[self.row[i]].to(n.dtype)).unflatten(-1, (self.H, 2 * self.D))
        q, gate = y.split(self.D, -1)
        return self.turned(q, "q", i, positions), lambda y: y * gate.sigmoid()

    def values(self, x, layer):
        return F.linear(x, self.v[self.row[layer]].to(x.dtype)).unflatten(-1, (self.G, self.D))

    def mlp(self, x, layer):
        gate, up, down = (w[layer].to(x.dtype) for w in (self.gate, self.up, self.down))
        return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    def named(self):
        """-> {name in the file: the parameter, or its part}."""
        out = {}
        for layer in range(self.L):
            for own, theirs in self.every.items():
                out["layers.%d.%s" % (layer, theirs)] = getattr(self, own)[layer]
            for own, theirs in (DELTA if self.delta[layer] else ATTENTION).items():
                part = getattr(self, own)[self.row[layer]]
                out["layers.%d.%s" % (layer, theirs)] = part.unsqueeze(1) if own == "conv" else part
        out["norm.weight"] = self.norm
        for own, theirs in self.extra.items():
            out[theirs] = getattr(self, own)
        return {self.prefix + k: v for k, v in out.items()}

    def files(self):
        """-> {name in the file: bf16 tensor}."""
        return {k: v.detach().to(torch.bfloat16).cpu().contiguous() for k, v in self.named().items()}

    def save(self, folder):
        os.makedirs(folder, exist_ok=True)
        save_file(self.files(), os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(self.config, f, indent=2)
            f.write("\n")

    @classmethod
    def load(cls, folder, device):
        """The weights as the file rounds them, in float32."""
        with open(os.path.join(folder, "config.json")) as f:
            model = cls(json.load(f))
        weights = load_file(os.path.join(folder, "model.safetensors"))
        with torch.no_grad():
            for name, part in model.named().items():
                part.copy_(weights[name])
        return model.to(device).requires_grad_(False)


class Target(Stack):
    prefix, extra = "model.", {"embed": "embed_tokens.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Parameter(torch.randn(config["vocab_size"], config["hidden_size"]) * 0.02)

    def layer_cache(self, i, batch, length, dtype):
        """-> (keys, values) [batch, length, G, D]"""
        return tuple(torch.zeros(2, batch, length, self.G, self.D, dtype=dtype, device=self.embed.device).unbind())

    def empty_cache(self, batch, length, dtype):
        return [self.layer_cache(i, batch, length, dtype) for i in range(self.L)]

    def attend(self, n, i, cache):
        """n [b, T, E] -> the attention's part of the residual stream [b, T, E]; keys and values go into cache from position 0."""
        positions = torch.arange(n.shape[1], device=n.device)
        q, gate = self.queries(n, i, positions)
        k, v = self.heads(n, "k", i, self.G, positions), self.values(n, i)
        if cache is not None:
            cache[0][:, :n.shape[1]], cache[1][:, :n.shape[1]] = k, v
        k, v = (y.transpose(1, 2).repeat_interleave(self.H // self.G, 1) for y in (k, v))
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True).transpose(1, 2)
        return F.linear(gate(y).flatten(2), self.o[self.row[i]].to(n.dtype))

    def attend_step(self, n, i, cache, position):
        """n [b, E], one token. The cache is read whole; positions ahead of this one are masked."""
        keys, values = cache
        keys.index_copy_(1, position, self.heads(n, "k", i, self.G, position)[:, None])
        values.index_copy_(1, position, self.values(n, i)[:, None])
        q, gate = self.queries(n, i, position)
        q = q.view(len(n), self.G, self.H // self.G, self.D)
        scores = (q @ keys.permute(0, 2, 3, 1)).float() * self.D ** -0.5  # [b, G, R, T]
        ahead = torch.arange(keys.shape[1], device=n.device) > position
        weights = scores.masked_fill(ahead, -torch.inf).softmax(-1).to(n.dtype)
        y = (weights @ values.transpose(1, 2)).flatten(1, 2)
        return F.linear(gate(y).flatten(1), self.o[self.row[i]].to(n.dtype))

    def mix(self, n, i, cache):
        return self.attend(n, i, cache)

    def mix_step(self, n, i, cache, position):
        return self.attend_step(n, i, cache, position)

    def forward(self, tokens, taps=(), dtype=torch.bfloat16, cache=None):
        """tokens [b, T], causal from position 0 -> final-normed rows [b, T, E] in dtype, taps [b, T, n_taps * E] (the residual stream
        after the blocks named) or None. cache: of empty_cache, filled in place."""
        x, after = F.embedding(tokens, self.embed), []
        for i in range(self.L):
            x = x + self.mix(self.normed(x, "norm_1", i, dtype), i, cache and cache[i]).float()
            x = x + self.mlp(self.normed(x, "norm_2", i, dtype), i).float()
            after.append(x)
        return self.final(x, dtype), torch.cat([after[t].to(dtype) for t in taps], -1) if len(taps) else None

    def logits(self, rows):
        return F.linear(rows, self.embed.to(rows.dtype))

    def decode(self, token, position, cache, dtype):
        """token [b], position a tensor [1] -> logits [b, V]."""
        x = F.embedding(token, self.embed)
        for i in range(self.L):
            x = x + self.mix_step(self.normed(x, "norm_1", i, dtype), i, cache[i], position).float()
            x = x + self.mlp(self.normed(x, "norm_2", i, dtype), i).float()
        return self.logits(self.final(x, dtype))


class HybridTarget(Target):
    """Qwen3.5: gated delta nets, and every few layers attention with an output gate and a partial rope. Norms but the delta net's
    own are stored as w - 1."""
    gated, plus = True, 1.0

    def __init__(self, config):
        super().__init__(config)
        self.K, self.V, self.d, dv, self.taps = (config["linear_" + k] for k in (
            "num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim"))
        E, L, V, width = config["hidden_size"], sum(self.delta), self.V, (2 * self.K + self.V) * self.d
        if dv != self.d:
            raise ValueError("linear_value_head_dim differs from linear_key_head_dim (%d and %d)" % (dv, self.d))
        self.matrices({"qkv": (width, E), "z": (V * dv, E), "alpha": (V, E), "beta": (V, E), "out": (E, V * dv)}, L)
        self.conv = nn.Parameter((torch.rand(L, width, self.taps) * 2 - 1) * self.taps ** -0.5)
        self.a_log = nn.Parameter((1 + 15 * torch.rand(L, V)).log())
        step = torch.exp(torch.rand(L, V) * math.log(100) + math.log(1e-3))  # 1e-3 to 0.1: memories of a token to a thousand
        self.dt = nn.Parameter(step + torch.log(-torch.expm1(-step)))       # softplus of it is the step
        self.delta_norm = nn.Parameter(torch.ones(L, dv))

    def layer_cache(self, i, batch, length, dtype):
        """-> (keys, values), or a delta net's last inputs [batch, taps - 1, width] and its states [batch, V, d, d]"""
        if not self.delta[i]:
            return super().layer_cache(i, batch, length, dtype)
        device = self.embed.device
        return (torch.zeros(batch, self.taps - 1, self.qkv.shape[1], dtype=dtype, device=device),
                torch.zeros(batch, self.V, self.d, self.d, device=device))

    def parts(self, mixed, n, r):
        """mixed [..., width] after the convolution, float32 -> q, k, v, log decay, beta of delta_chunks and delta_step."""
        q, k, v = mixed.split([self.K * self.d, self.K * self.d, self.V * self.d], -1)
        q, k, v = (x.unflatten(-1, (-1, self.d)) for x in (q, k, v))
        q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
        decay = -self.a_log[r].exp() * F.softplus(F.linear(n, self.alpha[r].to(n.dtype)).float() + self.dt[r])
        return q * self.d ** -0.5, k, v, decay, F.linear(n, self.beta[r].to(n.dtype)).float().sigmoid()

    def gated_out(self, o, n, r):
        z = F.linear(n, self.z[r].to(n.dtype)).unflatten(-1, (self.V, self.d))
        y = rms_norm(o, self.delta_norm[r], torch.float32) * F.silu(z.float())
        return F.linear(y.flatten(-2).to(n.dtype), self.out[r].to(n.dtype))

    def mix(self, n, i, cache):
        if not self.delta[i]:
            return self.attend(n, i, cache)
        r, T = self.row[i], n.shape[1]
        rows = F.pad(F.linear(n, self.qkv[r].to(n.dtype)), (0, 0, self.taps - 1, 0))
        mixed = F.silu(sum(rows[:, j:j + T].float() * self.conv[r, :, j] for j in range(self.taps)))
        o, state = delta_chunks(*self.parts(mixed, n, r))
        if cache is not None:
            cache[0].copy_(rows[:, T:])
            cache[1].copy_(state)
        return self.gated_out(o, n, r)

    def mix_step(self, n, i, cache, position):
        if not self.delta[i]:
            return self.attend_step(n, i, cache, position)
        r = self.row[i]
        rows = torch.cat([cache[0], F.linear(n, self.qkv[r].to(n.dtype))[:, None]], 1)
        mixed = F.silu((rows.float() * self.conv[r].mT).sum(1))
        cache[0].copy_(rows[:, 1:])
        return self.gated_out(delta_step(*self.parts(mixed, n, r), cache[1]), n, r)


def load_target(folder, device):
    with open(os.path.join(folder, "config.json")) as f:
        kind = json.load(f)["model_type"]
    return {"qwen3": Target, "qwen3_5_text": HybridTarget}[kind].load(folder, device)


def part(config, key):
    """A key of a drafter's config, nested or flat."""
    return config["dflash_config"][key] if key in config.get("dflash_config", ()) else config[key]


class Drafter(Stack):
    """DFlash. Its keys and values are made of the target's features, which all layers share, and of the block itself: the anchor
    and B - 1 mask tokens. Row r names the token at its own position, anchor + r; row 0 is unused.

    Proposal j of every kind is for position anchor + 1 + j. What all kinds are given: tokens [b, T]; anchors [b, N], positions
    whose features and later ones stay unseen; finals [b, T, E] and features [b, T, n_taps * E], the target's final-normed rows and
    its taps; the target, for its embedding and head."""
    prefix, extra = "", {"fc": "fc.weight", "hidden_norm": "hidden_norm.weight"}
    first = 1  # the row of the first proposal

    def __init__(self, config):
        super().__init__(config)
        self.taps, self.mask_id = part(config, "target_layer_ids"), part(config, "mask_token_id")
        self.B, self.W = part(config, "block_size"), config["sliding_window"] or config["max_position_embeddings"]
        self.P = self.B - self.first
        self.sliding = [t == "sliding_attention" for t in config["layer_types"]]
        self.causal = [config.get("is_causal", sliding) for sliding in self.sliding]  # within the block
        E, wide = config["hidden_size"], config["hidden_size"] * len(self.taps)
        self.fc = nn.Parameter(torch.randn(E, wide) * 0.5 * wide ** -0.5)
        self.hidden_norm = nn.Parameter(torch.ones(E))

    def around(self, n, i, sublayer):
        """n, the normed input of "attention" or "mlp" -> what it becomes, what is done with the sublayer's output."""
        return n, lambda y: y

    def forward(self, features, tokens, anchors, embed, dtype=torch.bfloat16):
        """embed [V, E] is the target's. -> final-normed rows [b, N, B, E]."""
        b, T, N, B, R = *tokens.shape, anchors.shape[1], self.B, self.H // self.G
        device = tokens.device
        context = rms_norm(F.linear(features.to(dtype), self.fc.to(dtype)), self.hidden_norm, dtype)
        ids = torch.full((b, N, B), self.mask_id, device=device)
        ids[..., 0] = tokens.gather(1, anchors)
        x = F.embedding(ids, embed)
        key_position = torch.arange(T, device=device)
        position = anchors[:, :, None] + torch.arange(B, device=device)  # [b, N, B]
        seen = (key_position < anchors[:, :, None])[:, :, None, :].expand(b, N, B, T)
        near = seen & (position[..., None] - key_position < self.W)
        causal = torch.ones(B, B, dtype=torch.bool, device=device).tril()
        for i in range(self.L):
            n, after = self.around(self.normed(x, "norm_1", i, dtype), i, "attention")
            q = self.heads(n, "q", i, self.H, position).unflatten(3, (self.G, R)).permute(0, 3, 4, 1, 2, 5)  # [b, G, R, N, B, D]
            k_own = self.heads(n, "k", i, self.G, position).permute(0, 3, 1, 2, 4).unsqueeze(2)              # [b, G, 1, N, B, D]
            v_own = self.values(n, i).permute(0, 3, 1, 2, 4).unsqueeze(2)
            k = self.heads(context, "k", i, self.G, key_position).transpose(1, 2)                            # [b, G, T, D]
            v = self.values(context, i).transpose(1, 2)
            far = (q.flatten(2, 4) @ k.transpose(2, 3)).float().unflatten(2, (R, N, B))                      # [b, G, R, N, B, T]
            far = far.masked_fill(~(near if self.sliding[i] else seen)[:, None, None], -torch.inf)
            own = (q @ k_own.transpose(-1, -2)).float()                                                      # [b, G, R, N, B, B]
            if self.causal[i]:
                own = own.masked_fill(~causal, -torch.inf)
            weights = (torch.cat([far, own], -1) * self.D ** -0.5).softmax(-1).to(dtype)
            y = (weights[..., :T].flatten(2, 4) @ v).unflatten(2, (R, N, B)) + weights[..., T:] @ v_own
            y = y.permute(0, 3, 4, 1, 2, 5).flatten(3)
            x = x + after(F.linear(y, self.o[i].to(dtype))).float()
            n, after = self.around(self.normed(x, "norm_2", i, dtype), i, "mlp")
            x = x + after(self.mlp(n, i)).float()
        return self.final(x, dtype)

    def rows(self, target, tokens, anchors, features, dtype):
        return self(features, tokens, anchors, target.embed, dtype)[:, :, self.first:]

    def learn(self, target, tokens, anchors, finals, features, goal, before, truth):
        """goal [b, N, P, V] is the target's own distribution at the place of each proposal, before and truth [b, N, P] are the
        stream's tokens ahead of it and at it. -> loss, probability of the truth, choice, all [b, N, P]; a proposal is chosen
        with the true tokens ahead of it."""
        guess = target.logits(self.rows(target, tokens, anchors, features, torch.bfloat16)).float().log_softmax(-1)
        return -(goal * guess).sum(-1), guess.gather(-1, truth[..., None]).squeeze(-1).exp(), guess.argmax(-1)

    def propose(self, target, tokens, anchors, finals, features, dtype):
        """-> [b, N, P], greedy."""
        return target.logits(self.rows(target, tokens, anchors, features, dtype)).argmax(-1)


class Generator:
    """Continues batches of prompts of one shape, on CUDA as a captured graph of one decode step."""

    def __init__(self, target, batch, n_prompt, n_new, dtype=torch.bfloat16):
        self.target, self.n_prompt, self.n_new, self.dtype = target, n_prompt, n_new, dtype
        device = target.embed.device
        self.cache = target.empty_cache(batch, n_prompt + n_new, dtype)
        self.out = torch.zeros(batch, n_prompt + n_new, dtype=torch.long, device=device)
        self.token = torch.zeros(batch, dtype=torch.long, device=device)
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.temperature = torch.zeros(batch, device=device)
        self.graph = None
        if device.type == "cuda":
            with torch.no_grad():
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())  # the buffers above must be filled first
                with torch.cuda.stream(side):
                    for _ in range(3):
                        self.step()
                torch.cuda.current_stream().wait_stream(side)
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph):
                    self.step()

    def pick(self, logits):
        logits = logits.float()
        noise = -torch.log(-torch.log(torch.rand_like(logits).clamp(1e-20, 1 - 1e-7)))  # Gumbel: argmax samples the softmax
        return (logits + noise * self.temperature[:, None]).argmax(-1)

    def step(self):
        """Process the token at position, put its successor at position + 1."""
        self.token.copy_(self.pick(self.target.decode(self.token, self.position, self.cache, self.dtype)))
        self.position += 1
        self.out.index_copy_(1, self.position, self.token[:, None])

    @torch.no_grad()
    def __call__(self, prompts, temperature):
        """prompts [batch, n_prompt], temperature [batch] -> tokens [batch, n_prompt + n_new], a buffer that the next call reuses."""
        self.temperature.copy_(temperature)
        slices = range(0, len(prompts), max(1, 2 ** 19 // self.n_prompt))
        rows = [slice(a, a + slices.step) for a in slices]
        last = [self.target(prompts[r], dtype=self.dtype, cache=[(x[r], y[r]) for x, y in self.cache])[0][:, -1] for r in rows]
        self.token.copy_(self.pick(self.target.logits(torch.cat(last))))
        self.out[:, :self.n_prompt] = prompts
        self.out[:, self.n_prompt] = self.token
        self.position.fill_(self.n_prompt)
        for _ in range(self.n_new - 1):
            self.graph.replay() if self.graph else self.step()
        return self.out


@torch.no_grad()
def accepted_lengths(target, drafter, streams, start, end, dtype=torch.float32):
    """Walk each stream as the verify loop would: draft a block at the anchor, count the proposals that agree with the stream, and
    the target's own next token. -> tau (tokens a cycle over positions start .. end), histogram of the tokens a cycle."""
    b, T = streams.shape
    P, device = drafter.P, streams.device
    finals, features = target(streams, drafter.taps, dtype)
    position = torch.full((b,), start, device=device)
    counts = torch.zeros(P + 2, device=device)
    committed = 0
    while bool((position < end).any()):
        live = position < end
        anchor = position.clamp(max=T - 1 - P)[:, None]
        proposals = drafter.propose(target, streams, anchor, finals, features, dtype)[:, 0, :P]
        truth = streams.gather(1, anchor + torch.arange(1, P + 1, device=device))
        got = (proposals == truth).long().cumprod(1).sum(1) + 1
        counts += torch.bincount(got[live], minlength=P + 2)
        committed += int(got[live].sum())
        position = torch.where(live, position + got, position)
    return committed / counts.sum().item(), (counts[1:] / counts.sum()).tolist()
