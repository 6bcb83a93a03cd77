"""The paper's forward pass in NumPy float64, one sentence pair at a time.

No batch, no padding, no masks except i >= j.

Written from the paper and from what the configuration keys say, to be compared with the modules.
`p` is their parameter tree as nested dicts of arrays, `m` anything with the fields of the model's
configuration.
"""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def norm(x, p, m):
    if m.norm_type == "rmsnorm":
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + m.norm_eps) * p["scale"]
    centred = x - x.mean(-1, keepdims=True)
    return (
        centred / np.sqrt((centred**2).mean(-1, keepdims=True) + m.norm_eps) * p["scale"]
        + p["bias"]
    )


def activation(x, kind):
    if kind == "relu":
        return np.maximum(0.0, x)
    if kind == "swish":
        return x / (1.0 + np.exp(-x))
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))  # gelu


def feed_forward(x, p, m):
    if m.feed_forward == "gated":
        gate, up, down = (p[name]["kernel"] for name in ("gate", "up", "down"))
        return (activation(x @ gate, m.activation) * (x @ up)) @ down
    first, second = p["Einsum_0"], p["Einsum_1"]
    return (
        activation(x @ first["kernel"] + first["bias"], m.activation) @ second["kernel"]
        + second["bias"]
    )


def rotate(x, theta):
    """RoPE with complex numbers: feature i is the real part, i + half the imaginary part."""
    half = x.shape[-1] // 2
    z = x[:, :half] + 1j * x[:, half:]
    for position in range(len(x)):
        for i in range(half):
            z[position, i] *= np.exp(1j * position / theta ** (i / half))
    return np.concatenate([z.real, z.imag], -1)


def alibi_slope(head, heads):
    """ALiBi's slope of a head.

    For `heads` between powers of two, every other slope of the next higher power.
    """
    lower = 2 ** int(np.floor(np.log2(heads)))
    return (
        2 ** (-8 * (head + 1) / lower)
        if head < lower
        else 2 ** (-8 * (2 * (head - lower) + 1) / (2 * lower))
    )


def attention(x, memory, p, m, causal, own=True):
    """Heads one after the other (3.2.2): each its own W_Q, W_K, W_V (or W_K, W_V of its group).

    Then their concatenation times W_O. `own`: self-attention, where positions may act.
    """

    def projected(y, name, head):
        bias = p[name]["bias"][head] if m.attention_bias else 0.0
        return y @ p[name]["kernel"][:, head] + bias

    heads = []
    for head in range(m.num_heads):
        group = head * m.num_kv_heads // m.num_heads if m.num_kv_heads else head
        q, k, v = (
            projected(x, "query", head),
            projected(memory, "key", group),
            projected(memory, "value", group),
        )
        if own and m.position == "rotary":
            theta = m.group("layer_types").rope_theta
            q, k = rotate(q, theta), rotate(k, theta)
        if m.attention_score == "additive":
            scores = np.tanh(q[:, None] + k[None]) @ p["score"]["v"][head]
        else:
            scores = q @ k.T
        if m.attention_score == "scaled_dot":
            scores = scores / np.sqrt(q.shape[-1])
        if own and m.position == "alibi":
            index = np.arange(len(x))
            scores = scores - alibi_slope(head, m.num_heads) * np.abs(index[:, None] - index)
        if own and m.mixer == "local_attention":
            index = np.arange(len(x))
            scores = np.where(
                2 * np.abs(index[:, None] - index) < m.group("layer_types").window, scores, -np.inf
            )
        if causal:
            scores = np.where(np.tri(len(q), len(k)) == 1, scores, -np.inf)
        heads.append(softmax(scores) @ v)
    concatenated = np.concatenate(heads, -1)
    w_o = p["out"]["kernel"].reshape(concatenated.shape[-1], -1)
    return concatenated @ w_o + (p["out"]["bias"] if m.attention_bias else 0.0)


def residual(x, sublayer, p, m):
    if m.norm_placement == "pre":
        return x + sublayer(norm(x, p["norm"], m))
    return norm(x + sublayer(x), p["norm"], m)


def encoder_layer(x, p, m):
    x = residual(
        x, lambda y: attention(y, y, p["self_attention"], m, False), p["residual_attention"], m
    )
    return residual(x, lambda y: feed_forward(y, p["feed_forward"], m), p["residual_ffn"], m)


def decoder_layer(x, memory, p, m):
    x = residual(
        x, lambda y: attention(y, y, p["self_attention"], m, True), p["residual_attention"], m
    )
    x = residual(
        x,
        lambda y: attention(y, memory, p["cross_attention"], m, False, own=False),
        p["residual_cross"],
        m,
    )
    return residual(x, lambda y: feed_forward(y, p["feed_forward"], m), p["residual_ffn"], m)


def positions(p, m, length):
    """[length, d_model]: position vectors added to the embeddings."""
    out = np.zeros((length, m.d_model))
    if m.position in ("none", "rotary", "alibi"):
        return out
    if m.position == "learned":
        return p["table"][:length]
    half = m.d_model // 2
    for row in range(length):
        for i in range(half):
            if m.position == "sinusoid_interleaved":
                angle = (row + m.position_offset) / 10000 ** (2 * i / m.d_model)
                out[row, 2 * i], out[row, 2 * i + 1] = np.sin(angle), np.cos(angle)
            else:
                angle = (row + m.position_offset) / 10000 ** (i / (half - 1))
                out[row, i], out[row, half + i] = np.sin(angle), np.cos(angle)
    return out


def tables(p, m):
    """(source lookup, target lookup, projection before the softmax), each [rows, d_model] (3.4)."""
    if m.tie_embeddings == "all":
        return (p["shared_embedding"]["table"],) * 3
    target = p["target_embedding"]["table"]
    return (
        p["source_embedding"]["table"],
        target,
        target if m.tie_embeddings == "decoder" else p["output_embedding"]["table"],
    )


def forward(p, m, source, target, vocab):
    """Logits [T, vocab] of the target ids given the source ids, without padding."""
    source_table, target_table, projection = tables(p, m)
    factor = np.sqrt(m.d_model) if m.embed_scale == "sqrt_d" else 1.0
    final_norm = m.final_norm == "both" or (m.final_norm == "auto" and m.norm_placement == "pre")

    x = factor * source_table[source] + positions(p.get("source_positions"), m, len(source))
    for n in range(m.num_encoder_layers):
        x = encoder_layer(x, p[f"encoder_{n}"], m)
    memory = norm(x, p["encoder_norm"], m) if final_norm else x

    start = {
        "zeros": lambda: np.zeros(m.d_model),
        "eos": lambda: factor * target_table[1],
        "pad": lambda: factor * target_table[0],
        "bos": lambda: factor * p["decoder_start_token"]["bos"],
    }[m.decoder_start_token]()
    x = np.stack([start, *(factor * target_table[target[:-1]])]) + positions(
        p.get("target_positions"), m, len(target)
    )
    for n in range(m.num_decoder_layers):
        x = decoder_layer(x, memory, p[f"decoder_{n}"], m)
    x = norm(x, p["decoder_norm"], m) if final_norm else x

    logits = x @ projection[:vocab].T
    logits = logits / np.sqrt(m.d_model) if m.logit_scale == "rsqrt_d" else logits
    return logits + p["output_bias"][:vocab] if m.output_bias else logits


def smoothed_target(target, vocab, eps, mass):
    """[vocab]: the label-smoothed target distribution (5.4)."""
    shares = np.ones(vocab)
    if mass != "all":
        shares[target] = 0.0
    return (1 - eps) * np.eye(vocab)[target] + eps * shares / shares.sum()


def smoothed_loss(logits, targets, weights, eps, mass):
    """Sum over positions of the cross-entropy of softmax(logits) with the smoothed target."""
    log_p = logits - logits.max(-1, keepdims=True)
    log_p = log_p - np.log(np.exp(log_p).sum(-1, keepdims=True))
    rows = zip(log_p, targets, weights, strict=True)
    return sum(-w * (smoothed_target(t, len(row), eps, mass) * row).sum() for row, t, w in rows)
