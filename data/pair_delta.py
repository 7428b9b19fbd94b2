"""The gated delta net of a Qwen3.5 layer: over whole sequences in chunks, for training, and a token at a time.

A head keeps a state S [d_k, d_v]. A token with key k and query q (of norm 1, q / sqrt(d_k)), value v, decay exp(g) and step beta:

    S = exp(g) S;  e = beta (v - S^T k);  S = S + k e^T;  o = S^T q

A chunk of C tokens does this with matrix products. With G_i the sum of g over the chunk's tokens up to i, and S the state before it,
the e of the chunk solve a lower triangular system; (I + A)^-1 is applied once to what does not depend on S:

    A_ij = beta_i exp(G_i - G_j) k_i.k_j for j < i;      W = (I + A)^-1 (beta exp(G) k);  U = (I + A)^-1 (beta v);  E = U - W S
    O = exp(G) q S + tril(exp(G_i - G_j) q_i.k_j) E;     S' = exp(G_C) S + sum_j exp(G_C - G_j) k_j E_j^T = M S + N

M and N of all chunks come at once; what is left to do in order is one small product a chunk. Everything is float32.

Letters: b batch, T tokens, K key heads, H value heads, d head size, n chunks, C chunk.
"""
import torch
import torch.nn.functional as F
from torch import library

C = 64


@library.custom_op("pair::unit_lower_inverse", mutates_args=())
def unit_lower_inverse(a: torch.Tensor) -> torch.Tensor:
    """(I + a)^-1 of strictly lower triangular a [batch, C, C]: blocks of 8 by their power series, then pairs of blocks, so that
    no power is taken that could grow."""
    place = torch.arange(C, device=a.device)

    def same_block(size):
        return (place[:, None] // size == place // size).to(a.dtype)

    power = a * same_block(8)
    x = torch.eye(C, device=a.device, dtype=a.dtype) - power
    for _ in range(2):
        power = power @ power
        x = x + x @ power
    for size in (8, 16, 32):
        x = x - x @ (a * (same_block(2 * size) - same_block(size))) @ x
    return x


@library.custom_op("pair::unit_lower_inverse_gradient", mutates_args=())
def unit_lower_inverse_gradient(x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return -(x.mT @ gradient @ x.mT)


@library.custom_op("pair::chain", mutates_args=())
def chain(m: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """S_0 = 0, S_(i+1) = m_i S_i + n_i for m, n [batch, chunks, d, d] -> all of them [batch, chunks + 1, d, d]."""
    states = [torch.zeros_like(n[:, 0])]
    for i in range(m.shape[1]):
        states.append(torch.baddbmm(n[:, i], m[:, i], states[-1]))
    return torch.stack(states, 1)


@library.custom_op("pair::chain_gradient", mutates_args=())
def chain_gradient(m: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """-> gradient of n_i, that of S_(i+1) with all that follows from it; [batch, chunks, d, d]."""
    after = [gradient[:, -1]]
    for i in range(m.shape[1] - 1, 0, -1):
        after.append(torch.baddbmm(gradient[:, i], m[:, i].mT, after[-1]))
    return torch.stack(after[::-1], 1)


for op in (unit_lower_inverse, unit_lower_inverse_gradient):
    op.register_fake(lambda a, *rest: torch.empty_like(a))
chain.register_fake(lambda m, n: n.new_empty(n.shape[0], n.shape[1] + 1, *n.shape[2:]))
chain_gradient.register_fake(lambda m, gradient: torch.empty_like(m))


def chain_backward(ctx, gradient):
    m, states = ctx.saved_tensors
    after = chain_gradient(m, gradient.contiguous())
    return after @ states[:, :-1].mT, after


unit_lower_inverse.register_autograd(
    lambda ctx, gradient: unit_lower_inverse_gradient(*ctx.saved_tensors, gradient.contiguous()),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output))
chain.register_autograd(chain_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0], output))


def delta_chunks(q, k, v, g, beta):
    """q, k [b, T, K, d]; v [b, T, H, d]; g, beta [b, T, H] -> o [b, T, H, d], the state after the last token [b, H, d, d].
    Value head h reads key head h / (H / K)."""
    T, H, R = v.shape[1], v.shape[2], v.shape[2] // k.shape[2]
    pad = -T % C  # tokens of step 0 and decay 1 change nothing
    q, k, v, g, beta = (F.pad(x, (0, 0) * (x.dim() - 2) + (0, pad)).unflatten(1, (-1, C)) for x in (q, k, v, g, beta))
    q, k, v = (x.permute(0, 3, 1, 2, 4) for x in (q, k, v))               # [b, K or H, n, C, d]
    g, beta = g.permute(0, 3, 1, 2), beta.permute(0, 3, 1, 2).unsqueeze(-1)
    total = g.cumsum(-1)                                                  # [b, H, n, C]
    rise, end = total.exp().unsqueeze(-1), total[..., -1:]
    place = torch.arange(C, device=q.device)
    fade = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(place[:, None] < place, -torch.inf).exp()
    keys, queries = ((x @ k.mT).repeat_interleave(R, 1) * fade for x in (k, q))
    q, k = (x.repeat_interleave(R, 1) for x in (q, k))
    x = unit_lower_inverse((keys * beta).tril(-1).flatten(0, 2).contiguous())
    wu = x.unflatten(0, q.shape[:3]) @ torch.cat([beta * rise * k, beta * v], -1)
    mn = (k * (end - total).exp().unsqueeze(-1)).mT @ wu                  # [b, H, n, d, d + d]
    d = k.shape[-1]
    m = torch.eye(d, device=q.device) * end.exp().unsqueeze(-1) - mn[..., :d]
    states = chain(m.flatten(0, 1).contiguous(), mn[..., d:].flatten(0, 1).contiguous()).unflatten(0, q.shape[:2])
    before = states[:, :, :-1]
    o = (rise * q) @ before + queries @ (wu[..., d:] - wu[..., :d] @ before)
    return o.permute(0, 2, 3, 1, 4).flatten(1, 2)[:, :T], states[:, :, -1]


def delta_step(q, k, v, g, beta, state):
    """One token: q, k [b, K, d]; v [b, H, d]; g, beta [b, H]; state [b, H, d, d] advances in place. -> o [b, H, d]"""
    q, k = (x.repeat_interleave(v.shape[1] // x.shape[1], 1) for x in (q, k))
    state.mul_(g.exp()[..., None, None])
    from_q, from_k = (torch.stack([q, k], 2) @ state).unbind(2)
    e = beta[..., None] * (v - from_k)
    state += k[..., None] * e[..., None, :]
    return from_q + (q * k).sum(-1, keepdim=True) * e
