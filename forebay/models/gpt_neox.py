"""GPT-NeoX (Black et al. 2022, arXiv:2204.06745): both halves side by side, a quarter of each head rotated."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from forebay.layers.norm import LayerNorm
from forebay.layers.rotary import Rotary, read_parameters, read_rotary
from forebay.models.base import Naming, read
from forebay.models.decoder import Decoder, DecoderShape, is_causal

_ROTATED = 0.25


def _rotary(config: Mapping[str, Any], head_dim: int) -> Rotary:
    """The base and the rotated part have names of their own in the older schema."""
    parameters = read_parameters(config)
    if config.get("rotary_emb_base") is not None:
        parameters.setdefault("rope_theta", config["rotary_emb_base"])
    part = parameters.setdefault("partial_rotary_factor", read(config, "rotary_pct", float, _ROTATED))
    return read_rotary(config, parameters, head_dim, part=part)


class GPTNeoX(Decoder):
    """Queries, keys and values alternate head by head in one tensor."""

    naming = Naming(
        ("gpt_neox.",),
        "layers.",
        {
            "attention.query_key_value": "qkv",
            "attention.dense": "attention_out",
            "mlp.dense_h_to_4h": "ffn_in",
            "mlp.dense_4h_to_h": "ffn_out",
            "input_layernorm": "attention_norm",
            "post_attention_layernorm": "ffn_norm",
        },
        {"embed_in": "words", "final_layer_norm": "norm"},
        (
            r"embed_out\..*",
            r"(score|classifier)\..*",
            r"layers\.\d+\.attention\.((masked_)?bias|rotary_emb\.inv_freq)",
        ),
    )

    def __init__(self, config: Mapping[str, Any]) -> None:
        hidden, num_heads = read(config, "hidden_size"), read(config, "num_attention_heads")
        num_layers, head_dim = read(config, "num_hidden_layers"), hidden // num_heads
        rotary, bias = _rotary(config, head_dim), read(config, "attention_bias", bool, True)
        shape = DecoderShape(
            hidden=hidden,
            intermediate=read(config, "intermediate_size"),
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=head_dim,
            max_len=int(read(config, "max_position_embeddings") * rotary.stretch),
            norm=partial(LayerNorm, eps=read(config, "layer_norm_eps", float, 1e-5)),
            activation=read(config, "hidden_act", str, "gelu"),
            windows=[None] * num_layers,
            scales=[head_dim**-0.5] * num_layers,
            rotaries={"": rotary},
            is_causal=is_causal(config),
            qkv_bias=bias,
            out_bias=bias,
            ffn_bias=True,
            is_gated=False,
            is_parallel=read(config, "use_parallel_residual", bool, True),
            stored="alternating",
        )
        super().__init__(config, shape)
