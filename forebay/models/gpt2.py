"""GPT-2 (Radford et al. 2019): learned positions, LayerNorm, one tensor for queries, keys and values."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from forebay.layers.norm import LayerNorm
from forebay.models.base import Naming, read, refuse
from forebay.models.decoder import Decoder, DecoderShape, is_causal


class GPT2(Decoder):
    """Its linear layers are stored as [in, out]."""

    naming = Naming(
        ("transformer.",),
        "h.",
        {
            "attn.c_attn": "qkv",
            "attn.c_proj": "attention_out",
            "mlp.c_fc": "ffn_in",
            "mlp.c_proj": "ffn_out",
            "ln_1": "attention_norm",
            "ln_2": "ffn_norm",
        },
        {"wte": "words", "wpe": "positions", "ln_f": "norm"},
        (r"lm_head\..*", r"(score|classifier)\..*", r"h\.\d+\.attn\.(masked_)?bias"),
        is_transposed=True,
    )

    def __init__(self, config: Mapping[str, Any]) -> None:
        refuse(config, add_cross_attention=False)
        hidden, num_heads, num_layers = (read(config, name) for name in ("n_embd", "n_head", "n_layer"))
        head_dim, max_len = hidden // num_heads, read(config, "n_positions")
        scale = head_dim**-0.5 if read(config, "scale_attn_weights", bool, True) else 1.0
        falls = read(config, "scale_attn_by_inverse_layer_idx", bool, False)
        shape = DecoderShape(
            hidden=hidden,
            intermediate=read(config, "n_inner", default=4 * hidden),
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=head_dim,
            max_len=max_len,
            num_positions=max_len,
            norm=partial(LayerNorm, eps=read(config, "layer_norm_epsilon", float, 1e-5)),
            activation=read(config, "activation_function", str, "gelu_new"),
            windows=[None] * num_layers,
            scales=[scale / (index + 1) if falls else scale for index in range(num_layers)],
            is_causal=is_causal(config),
            qkv_bias=True,
            out_bias=True,
            ffn_bias=True,
            is_gated=False,
            stored="together",
        )
        super().__init__(config, shape)
