"""The small pair as PyTorch modules: a Qwen3 target, and the DFlash drafter that proposes tokens for it.

Both keep the weights of all layers in stacks, one tensor [n_layer, out, in] a kind, in float32; a pass runs in the dtype that it
is given (the residual stream and the norms always in float32). Rope angles are float32 throughout: a bf16 cast of the
frequencies moves logits visibly. save() and load() speak the Hugging Face layout.

Letters: b batch, T tokens, E hidden size, H query heads, G key/value heads, D head size, N anchors, B block size, V vocabulary.
"""
import json
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

STACKS = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj", "gate": "mlp.gate_proj",
          "up": "mlp.up_proj", "down": "mlp.down_proj", "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm",
          "norm_1": "input_layernorm", "norm_2": "post_attention_layernorm"}


def rms_norm(x, weight, dtype, eps=1e-6):
    x = x.float()
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight).to(dtype)


def rope(x, cos, sin):
    """x [..., D] float32; cos, sin broadcast to [..., D/2]. Pairs are (i, i + D/2)."""
    u, v = x.chunk(2, -1)
    return torch.cat([u * cos - v * sin, v * cos + u * sin], -1)


class Stack(nn.Module):
    """What target and drafter share: weights, projections, the MLP, files."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        E, H, G, D, M, L = (config[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
                                                "intermediate_size", "num_hidden_layers"))
        self.H, self.G, self.D, self.L = H, G, D, L
        shapes = {"q": (H * D, E), "k": (G * D, E), "v": (G * D, E), "o": (E, H * D), "gate": (M, E), "up": (M, E), "down": (E, M)}
        for name, (rows, columns) in shapes.items():
            start = torch.zeros if name in ("o", "down") else torch.randn  # residual branches start silent
            setattr(self, name, nn.Parameter(start(L, rows, columns) * 0.5 * columns ** -0.5))
        for name, size in (("q_norm", D), ("k_norm", D), ("norm_1", E), ("norm_2", E)):
            setattr(self, name, nn.Parameter(torch.ones(L, size)))
        self.norm = nn.Parameter(torch.ones(E))
        theta = config["rope_parameters"]["rope_theta"]
        frequency = theta ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
        angle = torch.arange(config["max_position_embeddings"], dtype=torch.float64)[:, None] * frequency
        self.register_buffer("cos", angle.cos().float(), persistent=False)  # [positions, D/2]
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def heads(self, x, name, layer, count, positions):
        """[..., E] -> [..., count, D], normed per head and rotated; positions index the tables and have x's leading shape."""
        y = F.linear(x, getattr(self, name)[layer].to(x.dtype)).unflatten(-1, (count, self.D))
        y = rms_norm(y, getattr(self, name + "_norm")[layer], torch.float32)
        return rope(y, self.cos[positions].unsqueeze(-2), self.sin[positions].unsqueeze(-2)).to(x.dtype)

    def values(self, x, layer):
        return F.linear(x, self.v[layer].to(x.dtype)).unflatten(-1, (self.G, self.D))

    def mlp(self, x, layer):
        gate, up, down = (w[layer].to(x.dtype) for w in (self.gate, self.up, self.down))
        return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    def files(self):
        """-> {name in the file: bf16 tensor}."""
        out = {}
        for own, theirs in STACKS.items():
            for layer in range(self.L):
                out["layers.%d.%s.weight" % (layer, theirs)] = getattr(self, own)[layer]
        out["norm.weight"] = self.norm
        for own, theirs in self.extra.items():
            out[theirs] = getattr(self, own)
        return {self.prefix + k: v.detach().to(torch.bfloat16).cpu().contiguous() for k, v in out.items()}

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
            for own, theirs in STACKS.items():
                for layer in range(model.L):
                    getattr(model, own)[layer].copy_(weights[model.prefix + "layers.%d.%s.weight" % (layer, theirs)])
            for own, theirs in {"norm": "norm.weight", **model.extra}.items():
                getattr(model, own).copy_(weights[model.prefix + theirs])
        return model.to(device).requires_grad_(False)


class Target(Stack):
    prefix, extra = "model.", {"embed": "embed_tokens.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Parameter(torch.randn(config["vocab_size"], config["hidden_size"]) * 0.02)

    def forward(self, tokens, taps=(), dtype=torch.bfloat16, cache=None):
        """tokens [b, T], causal from position 0 -> final-normed rows [b, T, E] in dtype, taps [b, T, n_taps * E] (the residual stream
        after the blocks named) or None. cache: list a layer of (keys, values) [b, T', G, D], filled in place from position 0."""
        x, after = F.embedding(tokens, self.embed), []
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        R = self.H // self.G
        for i in range(self.L):
            n = rms_norm(x, self.norm_1[i], dtype)
            q, k, v = self.heads(n, "q", i, self.H, positions), self.heads(n, "k", i, self.G, positions), self.values(n, i)
            if cache is not None:
                cache[i][0][:, :tokens.shape[1]], cache[i][1][:, :tokens.shape[1]] = k, v
            k, v = (y.transpose(1, 2).repeat_interleave(R, 1) for y in (k, v))
            y = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True)
            x = x + F.linear(y.transpose(1, 2).flatten(2), self.o[i].to(dtype)).float()
            x = x + self.mlp(rms_norm(x, self.norm_2[i], dtype), i).float()
            after.append(x)
        return rms_norm(x, self.norm, dtype), torch.cat([after[t].to(dtype) for t in taps], -1) if len(taps) else None

    def logits(self, rows):
        return F.linear(rows, self.embed.to(rows.dtype))

    def decode(self, token, position, cache, dtype):
        """token [b], position a tensor [1] -> logits [b, V]. The cache is read whole; positions ahead of this one are masked."""
        b, R = len(token), self.H // self.G
        x = F.embedding(token, self.embed)
        ahead = torch.arange(cache[0][0].shape[1], device=token.device) > position
        for i in range(self.L):
            n = rms_norm(x, self.norm_1[i], dtype)
            keys, values = cache[i]
            keys.index_copy_(1, position, self.heads(n, "k", i, self.G, position)[:, None])
            values.index_copy_(1, position, self.values(n, i)[:, None])
            q = self.heads(n, "q", i, self.H, position).view(b, self.G, R, self.D)
            scores = (q @ keys.permute(0, 2, 3, 1)).float() * self.D ** -0.5  # [b, G, R, T]
            weights = scores.masked_fill(ahead, -torch.inf).softmax(-1).to(dtype)
            y = (weights @ values.transpose(1, 2)).flatten(1)
            x = x + F.linear(y, self.o[i].to(dtype)).float()
            x = x + self.mlp(rms_norm(x, self.norm_2[i], dtype), i).float()
        return self.logits(rms_norm(x, self.norm, dtype))


class Drafter(Stack):
    """Its keys and values are made of the target's features, which all layers share, and of the block itself: the anchor and
    B - 1 mask tokens. Row r names the token at its own position, anchor + r; row 0 is unused."""
    prefix, extra = "", {"fc": "fc.weight", "hidden_norm": "hidden_norm.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.taps, self.mask_id = (config["dflash_config"][k] for k in ("target_layer_ids", "mask_token_id"))
        self.B, self.W = config["block_size"], config["sliding_window"]
        self.sliding = [t == "sliding_attention" for t in config["layer_types"]]
        E, wide = config["hidden_size"], config["hidden_size"] * len(self.taps)
        self.fc = nn.Parameter(torch.randn(E, wide) * 0.5 * wide ** -0.5)
        self.hidden_norm = nn.Parameter(torch.ones(E))

    def forward(self, features, tokens, anchors, embed, dtype=torch.bfloat16):
        """features [b, T, n_taps * E]; tokens [b, T]; anchors [b, N], positions whose features and later ones stay unseen; embed
        [V, E] is the target's. -> final-normed rows [b, N, B, E]."""
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
            n = rms_norm(x, self.norm_1[i], dtype)
            q = self.heads(n, "q", i, self.H, position).unflatten(3, (self.G, R)).permute(0, 3, 4, 1, 2, 5)  # [b, G, R, N, B, D]
            k_own = self.heads(n, "k", i, self.G, position).permute(0, 3, 1, 2, 4).unsqueeze(2)              # [b, G, 1, N, B, D]
            v_own = self.values(n, i).permute(0, 3, 1, 2, 4).unsqueeze(2)
            k = self.heads(context, "k", i, self.G, key_position).transpose(1, 2)                            # [b, G, T, D]
            v = self.values(context, i).transpose(1, 2)
            far = (q.flatten(2, 4) @ k.transpose(2, 3)).float().unflatten(2, (R, N, B))                      # [b, G, R, N, B, T]
            far = far.masked_fill(~(near if self.sliding[i] else seen)[:, None, None], -torch.inf)
            own = (q @ k_own.transpose(-1, -2)).float()                                                      # [b, G, R, N, B, B]
            if self.sliding[i]:
                own = own.masked_fill(~causal, -torch.inf)
            weights = (torch.cat([far, own], -1) * self.D ** -0.5).softmax(-1).to(dtype)
            y = (weights[..., :T].flatten(2, 4) @ v).unflatten(2, (R, N, B)) + weights[..., T:] @ v_own
            y = y.permute(0, 3, 4, 1, 2, 5).flatten(3)
            x = x + F.linear(y, self.o[i].to(dtype)).float()
            x = x + self.mlp(rms_norm(x, self.norm_2[i], dtype), i).float()
        return rms_norm(x, self.norm, dtype)


class Generator:
    """Continues batches of prompts of one shape, on CUDA as a captured graph of one decode step."""

    def __init__(self, target, batch, n_prompt, n_new, dtype=torch.bfloat16):
        self.target, self.n_prompt, self.n_new, self.dtype = target, n_prompt, n_new, dtype
        device = target.embed.device
        shape = (batch, n_prompt + n_new, target.G, target.D)
        self.cache = [(torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))
                      for _ in range(target.L)]
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
        last = [self.target(prompts[r], dtype=self.dtype, cache=[(k[r], v[r]) for k, v in self.cache])[0][:, -1] for r in rows]
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
    B, device = drafter.B, streams.device
    features = target(streams, drafter.taps, dtype)[1]
    position = torch.full((b,), start, device=device)
    counts = torch.zeros(B + 1, device=device)
    committed = 0
    while bool((position < end).any()):
        live = position < end
        anchor = position.clamp(max=T - B)[:, None]
        rows = drafter(features, streams, anchor, target.embed, dtype)[:, 0, 1:]
        proposals = target.logits(rows).argmax(-1)
        truth = streams.gather(1, anchor + torch.arange(1, B, device=device))
        got = (proposals == truth).long().cumprod(1).sum(1) + 1
        counts += torch.bincount(got[live], minlength=B + 1)
        committed += int(got[live].sum())
        position = torch.where(live, position + got, position)
    return committed / counts.sum().item(), (counts[1:] / counts.sum()).tolist()
