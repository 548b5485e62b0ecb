"""The sites of a model, in the order of the computation, with their names in other libraries."""

from __future__ import annotations

from typing import NamedTuple


class SiteNames(NamedTuple):
    """One site and its names.

    Attributes:
        site: Its path; `12` is an example of a layer's number.
        shape: The axes of its value: batch, length (queries), keys, heads, depth, width, hidden, vocabulary;
            one for an axis that has a single number.
        lens: Its name in TransformerLens; empty if it has none.
        hub: The module of a Llama in `transformers` that computes it; empty if it is not the output of one.
        meaning: A description.
    """

    site: str
    shape: str
    lens: str
    hub: str
    meaning: str


_L, _B = "blocks.12", "model.layers.12"

SITES: tuple[SiteNames, ...] = (
    SiteNames(
        "embedded", "batch length width", "hook_embed", "model.embed_tokens", "the stream before the first block"
    ),
    SiteNames("blocks/12/in", "batch length width", f"{_L}.hook_resid_pre", "", "the stream before a block"),
    SiteNames("blocks/12/attn_in", "batch length width", f"{_L}.hook_attn_in", "", "the stream as attention reads it"),
    SiteNames("blocks/12/norm1/factor", "batch length one", "", "", "one over the norm's scale (`ln1.hook_scale`)"),
    SiteNames(
        "blocks/12/norm1/normalized", "batch length width", f"{_L}.ln1.hook_normalized", "", "before scale and bias"
    ),
    SiteNames("blocks/12/norm1", "batch length width", "", f"{_B}.input_layernorm", "what attention reads"),
    SiteNames("blocks/12/attn/q", "batch length heads depth", f"{_L}.attn.hook_q", f"{_B}.self_attn.q_proj", "queries"),
    SiteNames(
        "blocks/12/attn/k", "batch length key-heads depth", f"{_L}.attn.hook_k", f"{_B}.self_attn.k_proj", "keys"
    ),
    SiteNames(
        "blocks/12/attn/v", "batch length key-heads depth", f"{_L}.attn.hook_v", f"{_B}.self_attn.v_proj", "values"
    ),
    SiteNames(
        "blocks/12/attn/q_rotated", "batch length heads depth", f"{_L}.attn.hook_rot_q", "", "queries at their position"
    ),
    SiteNames(
        "blocks/12/attn/k_rotated", "batch length key-heads depth", f"{_L}.attn.hook_rot_k", "", "keys at theirs"
    ),
    SiteNames(
        "blocks/12/attn/scores", "batch heads length keys", f"{_L}.attn.hook_attn_scores", "", "before mask and softmax"
    ),
    SiteNames("blocks/12/attn/weights", "batch heads length keys", f"{_L}.attn.hook_pattern", "", "after softmax"),
    SiteNames(
        "blocks/12/attn/heads", "batch length heads depth", f"{_L}.attn.hook_z", "", "the mix of values per head"
    ),
    SiteNames(
        "blocks/12/attn/results",
        "batch length heads width",
        f"{_L}.attn.hook_result",
        "",
        "what each head adds, if asked",
    ),
    SiteNames(
        "blocks/12/attn/out", "batch length width", f"{_L}.hook_attn_out", f"{_B}.self_attn", "attention's output"
    ),
    SiteNames(
        "blocks/12/attn_norm", "batch length width", f"{_L}.ln1_post", f"{_B}.post_attention_layernorm", "Gemma 2 and 3"
    ),
    SiteNames("blocks/12/mid", "batch length width", f"{_L}.hook_resid_mid", "", "the stream after attention"),
    SiteNames("blocks/12/mlp_in", "batch length width", f"{_L}.hook_mlp_in", "", "the stream as the MLP reads it"),
    SiteNames("blocks/12/norm2/factor", "batch length one", "", "", "one over the norm's scale (`ln2.hook_scale`)"),
    SiteNames(
        "blocks/12/norm2/normalized", "batch length width", f"{_L}.ln2.hook_normalized", "", "before scale and bias"
    ),
    SiteNames("blocks/12/norm2", "batch length width", "", f"{_B}.post_attention_layernorm", "what the MLP reads"),
    SiteNames(
        "blocks/12/mlp/pre",
        "batch length hidden",
        f"{_L}.mlp.hook_pre",
        f"{_B}.mlp.gate_proj",
        "before the nonlinearity",
    ),
    SiteNames(
        "blocks/12/mlp/up", "batch length hidden", f"{_L}.mlp.hook_pre_linear", f"{_B}.mlp.up_proj", "gated MLPs"
    ),
    SiteNames("blocks/12/mlp/hidden", "batch length hidden", f"{_L}.mlp.hook_post", "", "the neurons"),
    SiteNames("blocks/12/mlp/out", "batch length width", f"{_L}.hook_mlp_out", f"{_B}.mlp", "the MLP's output"),
    SiteNames(
        "blocks/12/mlp_norm",
        "batch length width",
        f"{_L}.ln2_post",
        f"{_B}.post_feedforward_layernorm",
        "Gemma 2 and 3",
    ),
    SiteNames("blocks/12/out", "batch length width", f"{_L}.hook_resid_post", _B, "the stream after a block"),
    SiteNames("norm", "batch length width", "", "model.norm", "what the output layer reads"),
    SiteNames("logits", "batch length vocabulary", "", "lm_head", "what the model says"),
)
