/* llama.c - the block of a Llama 3 target: Qwen3's without head norms.
 *
 *     n = rms_norm(x; attn_norm);  q, k = rope(Wq n), rope(Wk n);  v = Wv n
 *     x += Wo attention(q, k, v)                  causal, grouped heads, scale 1/sqrt(head_dim)
 *     x += Wdown (silu(Wgate m) * (Wup m)),       m = rms_norm(x; ffn_norm)
 *
 * In a GGUF the rows of Wq and Wk are permuted within each head so that the pairs that turn together lie side
 * by side, which the description says as an interleaved rope set; the long-context scaling of Llama 3.1 is in
 * that set's divisors. Without norms' weights qwen3_attention norms no heads. Source: the Llama model of
 * Hugging Face transformers. */
#include "model.h"

const struct model_family family_llama = {DESC_LLAMA, qwen3_block};
