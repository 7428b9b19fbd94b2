"""Drafters beyond DFlash as PyTorch modules: DFlash2, DSpark, and the MTP block of a Qwen3.5 target.

Each says how its loss is made (learn) and what it proposes (propose), as pair_model.Drafter does, whose letters hold here too;
K taps of a convolution, R rank, k candidates (n_best).
"""
import json
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

from pair_model import Drafter, Stack, part, rms_norm


class DFlash2(Drafter):
    """DFlash with a convolution of K taps over the block's rows on either side of attention and MLP, and a selector among the k
    best tokens of a row. A kernel is a fixed part and a part made of the sublayer's input, one number a group of channels."""
    every = {**Stack.every, **{sublayer + own: "%s_conv.%s" % (sublayer, theirs) for sublayer in ("attention", "mlp")
                               for own, theirs in (("_base", "base_kernel"), ("_kernel", "kernel_projection.weight"))}}
    extra = {**Drafter.extra, "selector_hidden": "candidate_selector.hidden_projection.weight",
             "predecessor": "candidate_selector.predecessor_codebook", "successor": "candidate_selector.successor_codebook"}

    def __init__(self, config):
        super().__init__(config)
        self.K, self.group, rank, self.n_best = (part(config, key) for key in (
            "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"))
        E, V, L = config["hidden_size"], config["vocab_size"], self.L
        for sublayer in ("attention", "mlp"):  # at the start a convolution passes what it gets
            base = torch.zeros(L, 2, self.K, E)
            base[:, :, 0] = 1
            setattr(self, sublayer + "_base", nn.Parameter(base))
            setattr(self, sublayer + "_kernel", nn.Parameter(torch.zeros(L, 2 * self.K * E // self.group, E)))
        self.selector_hidden = nn.Parameter(torch.randn(rank, E) * E ** -0.5)
        self.predecessor = nn.Parameter(torch.randn(V, rank) * 0.5)
        self.successor = nn.Parameter(torch.zeros(V, rank))

    def around(self, n, i, sublayer):
        base, kernel = getattr(self, sublayer + "_base")[i], getattr(self, sublayer + "_kernel")[i]
        dynamic = F.linear(n, kernel.to(n.dtype)).unflatten(-1, (2, self.K, -1)).repeat_interleave(self.group, -1)

        def convolve(y, side):  # y [b, N, B, E]; rows before the block are zero
            return sum((base[side, t].to(y.dtype) + dynamic[..., side, t, :]) * F.pad(y, (0, 0, t, 0))[:, :, :self.B]
                       for t in range(self.K))

        return convolve(n, 0), lambda y: convolve(y, 1)

    def scores(self, rows, unary, ids, before):
        """rows [..., E], the k best logits and their ids [..., k], the tokens ahead [...] -> scores of the ids [..., k]."""
        link = F.embedding(before, self.predecessor) * F.linear(rows.float(), self.selector_hidden)
        return unary + (F.embedding(ids, self.successor) @ link.unsqueeze(-1)).squeeze(-1)

    def learn(self, target, tokens, anchors, finals, features, goal, before, truth):
        """Cross entropy of the head as in DFlash, and that of the selector over the candidates, by the goal's share on them."""
        rows = self.rows(target, tokens, anchors, features, torch.bfloat16)
        logits = target.logits(rows).float()
        loss = -(goal * logits.log_softmax(-1)).sum(-1)
        ids = logits.detach().topk(self.n_best, -1).indices
        scores = self.scores(rows, logits.gather(-1, ids), ids, before)
        loss = loss - (goal.gather(-1, ids) * scores.log_softmax(-1)).sum(-1)
        true = (scores.softmax(-1) * (ids == truth[..., None])).sum(-1)
        return loss, true, ids.gather(-1, scores.argmax(-1, keepdim=True)).squeeze(-1)

    def propose(self, target, tokens, anchors, finals, features, dtype):
        rows = self.rows(target, tokens, anchors, features, dtype)
        unary, ids = target.logits(rows).topk(self.n_best, -1)
        picks = [tokens.gather(1, anchors)]
        for j in range(self.P):
            best = self.scores(rows[:, :, j], unary[:, :, j], ids[:, :, j], picks[-1]).argmax(-1, keepdim=True)
            picks.append(ids[:, :, j].gather(-1, best).squeeze(-1))
        return torch.stack(picks[1:], -1)


class DSpark(Drafter):
    """DFlash whose row r names the token behind its own position, the anchor's row included. A Markov head of rank R adds to a
    row's logits what the token ahead says; a confidence head says how likely the choice is right."""
    extra = {**Drafter.extra, "markov_1": "markov_head.markov_w1.weight", "markov_2": "markov_head.markov_w2.weight",
             "confidence": "confidence_head.proj.weight", "confidence_bias": "confidence_head.proj.bias"}
    first = 0

    def __init__(self, config):
        super().__init__(config)
        E, V, rank = config["hidden_size"], config["vocab_size"], config["markov_rank"]
        if config["markov_head_type"] != "vanilla" or not config["confidence_head_with_markov"]:
            raise ValueError("only a vanilla Markov head, read by the confidence head, is written down here")
        self.markov_1 = nn.Parameter(torch.randn(V, rank) * 0.5)
        self.markov_2 = nn.Parameter(torch.zeros(V, rank))
        self.confidence = nn.Parameter(torch.zeros(1, E + rank))
        self.confidence_bias = nn.Parameter(torch.zeros(1))

    def corrected(self, target, rows, before):
        """-> logits [..., V], the predecessors' part [..., R]"""
        link = F.embedding(before, self.markov_1).to(rows.dtype)
        return (target.logits(rows) + F.linear(link, self.markov_2.to(rows.dtype))).float(), link

    def learn(self, target, tokens, anchors, finals, features, goal, before, truth):
        """The confidence head learns the target's probability of the choice; its loss moves nothing but its own weights."""
        rows = self.rows(target, tokens, anchors, features, torch.bfloat16)
        logits, link = self.corrected(target, rows, before)
        guess, choice = logits.log_softmax(-1), logits.argmax(-1)
        sure = F.linear(torch.cat([rows, link], -1).detach().float(), self.confidence, self.confidence_bias).squeeze(-1)
        right = goal.gather(-1, choice[..., None]).squeeze(-1)
        loss = F.binary_cross_entropy_with_logits(sure, right, reduction="none") - (goal * guess).sum(-1)
        return loss, guess.gather(-1, truth[..., None]).squeeze(-1).exp(), choice

    def propose(self, target, tokens, anchors, finals, features, dtype):
        rows = self.rows(target, tokens, anchors, features, dtype)
        picks = [tokens.gather(1, anchors)]
        for j in range(self.P):
            picks.append(self.corrected(target, rows[:, :, j], picks[-1])[0].argmax(-1))
        return torch.stack(picks[1:], -1)


class Mtp(Stack):
    """The block of a Qwen3.5 target that predicts further tokens: one layer of gated attention. A row joins a token with the
    hidden state of the position before it: the target's, final-normed, and further on in a draft the block's own. Position 0 has
    no row."""
    prefix, extra, gated, plus = "mtp.", {"fc": "fc.weight", "norm_embedding": "pre_fc_norm_embedding.weight",
                                          "norm_hidden": "pre_fc_norm_hidden.weight"}, True, 1.0
    taps = ()

    def __init__(self, config):
        super().__init__({**config, "num_hidden_layers": 1, "layer_types": ["full_attention"]})
        self.config, E = config, config["hidden_size"]
        self.fc = nn.Parameter(torch.randn(E, 2 * E) * 0.5 * (2 * E) ** -0.5)
        self.norm_embedding, self.norm_hidden = nn.Parameter(torch.zeros(E)), nn.Parameter(torch.zeros(E))
        self.P = 3

    def joined(self, target, tokens, hidden, dtype):
        both = [rms_norm(x, w + self.plus, dtype) for x, w in ((F.embedding(tokens, target.embed), self.norm_embedding),
                                                               (hidden, self.norm_hidden))]
        return F.linear(torch.cat(both, -1), self.fc.to(dtype)).float()

    def draft(self, target, tokens, anchors, finals, dtype, follow):
        """A chain of P rows from each anchor, the first with the target's hidden state. follow: logits of proposal j, j -> the
        token [b, N] that the next row reads. -> all logits [b, N, P, V]"""
        b, T, N, R = *tokens.shape, anchors.shape[1], self.H // self.G
        places = torch.arange(T, device=tokens.device)
        n = self.normed(self.joined(target, tokens, F.pad(finals[:, :-1], (0, 0, 1, 0)), dtype), "norm_1", 0, dtype)
        k, v = self.heads(n, "k", 0, self.G, places).transpose(1, 2), self.values(n, 0).transpose(1, 2)  # [b, G, T, D]
        unseen = ((places > anchors[:, :, None]) | (places == 0))[:, None, None]                         # [b, 1, 1, N, T]
        token, hidden = tokens.gather(1, anchors), finals.gather(1, (anchors - 1)[..., None].expand(-1, -1, finals.shape[2]))
        own_k, own_v, out = [], [], []
        for j in range(self.P):
            x = self.joined(target, token, hidden, dtype)  # [b, N, E]
            n = self.normed(x, "norm_1", 0, dtype)
            q, gate = self.queries(n, 0, anchors + j)
            q = q.unflatten(2, (self.G, R)).permute(0, 2, 3, 1, 4)  # [b, G, R, N, D]
            scores = [(q.flatten(2, 3) @ k.mT).float().unflatten(2, (R, N)).masked_fill(unseen, -torch.inf)]
            if j:  # the first row is among the keys of the stream
                own_k.append(self.heads(n, "k", 0, self.G, anchors + j).transpose(1, 2).unsqueeze(2))  # [b, G, 1, N, D]
                own_v.append(self.values(n, 0).transpose(1, 2).unsqueeze(2))
                scores += [(q * key).float().sum(-1, keepdim=True) for key in own_k]
            weights = (torch.cat(scores, -1) * self.D ** -0.5).softmax(-1).to(dtype)
            y = (weights[..., :T].flatten(2, 3) @ v).unflatten(2, (R, N))
            for i, value in enumerate(own_v):
                y = y + weights[..., T + i:T + i + 1] * value
            y = gate(y.permute(0, 3, 1, 2, 4).flatten(2, 3)).flatten(2)
            x = x + F.linear(y, self.o[0].to(dtype)).float()
            x = x + self.mlp(self.normed(x, "norm_2", 0, dtype), 0).float()
            hidden = self.final(x, dtype)
            out.append(target.logits(hidden).float())
            token = follow(out[-1], j)
        return torch.stack(out, 2)

    def learn(self, target, tokens, anchors, finals, features, goal, before, truth):
        logits = self.draft(target, tokens, anchors, finals, torch.bfloat16, lambda _, j: truth[:, :, j])
        guess = logits.log_softmax(-1)
        return -(goal * guess).sum(-1), guess.gather(-1, truth[..., None]).squeeze(-1).exp(), guess.argmax(-1)

    def propose(self, target, tokens, anchors, finals, features, dtype):
        return self.draft(target, tokens, anchors, finals, dtype, lambda logits, _: logits.argmax(-1)).argmax(-1)


KINDS = {"dflash": Drafter, "dflash2": DFlash2, "dspark": DSpark, "mtp": Mtp}
CLASSES = {"DFlashDraftModel": Drafter, "DFlash2DraftModel": DFlash2, "Qwen3DSparkModel": DSpark, "Qwen3_5ForCausalLM": Mtp}


def load_drafter(folder, device):
    with open(os.path.join(folder, "config.json")) as f:
        return CLASSES[json.load(f)["architectures"][0]].load(folder, device)
