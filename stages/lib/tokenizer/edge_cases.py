"""Texts that tokenizers often handle wrongly."""

EDGE_CASES = (
    "",
    " ",
    "  two  spaces  ",
    "\ttab\n\nnewlines\r\n",
    "trailing \n ",
    "0123456789 3.14159 1e-05",
    "</s>",
    "a<s>b</s>c<unk>",
    "<|begin_of_text|>a<|end_of_text|> <|eot_id|>",
    "<0x0A>",
    "\x00NUL\x00\x07",
    "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0 \u4e2d\u6587 \ud55c\uad6d\uc5b4",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f3\ufe0f\u200d\U0001f308",
    "e\u0301 \u00e9 n\u0303 \u1e9b\u0323",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u202eoverride",
    "\u00a0no-break\u2003em\u200bzero",
    "\ufefffirst \ufb01 \u00bd \u2126",
    "def f(x):\n    return {'a': [x]}  # \u2192\n",
    "A" * 300,
)
