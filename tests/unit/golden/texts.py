"""The corpus of the tokenizer goldens: what tokenizers get wrong. Long texts are made here, not typed."""

from __future__ import annotations

import random

_CODE = '''def fib(n: int) -> int:
    """Return the n-th Fibonacci number (0-based)."""
    a, b = 0, 1
\tfor _ in range(n):  # a tab, on purpose
        a, b = b, a + b
    return a


class  Spaced :\r
    x=1;y  =  {"k": [1,2,3], 'z': 0xDEADBEEF, "π": 3.14159e-10}
'''
_RUST = 'fn main() {\n    let v: Vec<u32> = (0..10).map(|x| x * x).collect();\n    println!("{:?}", v);\n}\n'
_HTML = "<div class=\"a-b_c\" data-x='1'>&nbsp;<br/>\n<!-- <|im_end|> --></div>"
_PROSE = (
    "The history of bread is older than writing: people ground grain between stones, mixed the flour with water and "
    "baked it on hot ashes. By 3000 BC, leavened loaves were sold in Egypt; 1,234 years later the baker's trade had "
    "its rules. It's said that they'd weigh each loaf — don't ask how — and fined whoever'd sold short weight. "
)

SHORT_TEXTS = [
    "",
    " ",
    "  ",
    "   x",
    "x   ",
    "\n",
    "\n\n\n",
    " \n \n",
    "\r\n\r\n",
    "\t\t\tdeep",
    "a\tb\t\tc",
    "Hello, world!",
    "Hello,world!How are you?",
    " leading space",
    "trailing space ",
    "two  spaces   three    four     five",
    "UPPER lower MiXeD CamelCaseIdentifier snake_case_name kebab-case",
    "I'm you're he'll they've we'd it's DON'T I'M WE'LL can't've",
    "‘curly’ “quotes” – dashes — and… ellipsis",
    "2024",
    "1234567890",
    "3.14159 -42 +7 1e10 0x1F 1,000,000.00 ½ ² ³ ① Ⅷ ٣ ४ ๕",
    "a1b2c3 x86_64 utf8 h264 COVID-19 GPT-4o 7B",
    "12:34:56 on 2024-02-29, room 101B, +1 (555) 010-9999",
    "1 2 3  4   5",
    "价格是123元，共456件。",
    "你好，世界！今天天气怎么样？",
    "日本語のテキスト：ひらがな、カタカナ、漢字。",
    "한국어 문장입니다. 잘 지내세요?",
    "繁體中文測試，標點「引號」。",
    "Привет, мир! Как дела? Ёжик.",
    "Γειά σου Κόσμε",
    "مرحبا بالعالم، كيف حالك؟",
    "שלום עולם",
    "नमस्ते दुनिया, आप कैसे हैं?",
    "สวัสดีชาวโลก",
    "Tiếng Việt có dấu: đường, nước, người",
    "café naïve Ångström İstanbul ß ŒUVRE",
    "cafe\u0301 (decomposed) vs café (composed)",
    "🙂",
    "😀😃😄 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇯🇵",
    "text🙂with🎉emoji inside🔥",
    "🍞 bread 🥖 baguette 🥐",
    "mixed 混合 смесь مزيج 🙂 123 αβγ",
    "zero\u200bwidth\u200cjoin\u200der\ufeffbom",
    "nbsp\u00a0here\u2003em\u3000ideographic\u2028line\u0085next",
    "\u0000\u0001\u001f control \u007f",
    "\U0001d54f\U0001d550 math 𝒜𝓁𝓅𝒽𝒶 \U0001f9ff \U000e0001",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>",
    "<|im_end|><|im_end|><|endoftext|>",
    "not quite: <|im_start| > <|im_end <im_start> |im_end|> <|IM_START|> <| im_end |>",
    "a<|endoftext|>b <repo_name>x<file_sep>y <filename>z<gh_stars>",
    "<s> </s> [INST] hi [/INST] <|eot_id|> <0x0A> <unk> [PAD]",
    "<<|im_end|>>x<|im_start|><|im_sta",
    "http://example.com/path?q=1&r=%20#frag user@example.org C:\\Temp\\new",
    "{}[]()<>/\\|~`!@#$%^&*-_=+;:'\",.?",
    "!!!??? ... ---- ==== //// **** ####",
    '{"a": [1, 2.5, null, true], "b": {"c": "d\\n\\u00e9"}}',
    "$E = mc^2$ and \\frac{a}{b} \\sum_{i=0}^{n} x_i",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "SELECT * FROM users WHERE id=42 AND name LIKE '%O''Brien%';",
    "| a | b |\n|---|---|\n| 1 | 2 |\n",
    "- item\n  - nested\n    1. deep\n\n> quote\n",
    "word\n\n\nword\n \nword \n  word",
    "'s 't 're 've 'm 'll 'd 'S ' s",
    _CODE,
    _RUST,
    _HTML,
]


def _random_text(seed: int, length: int) -> str:
    """Characters of many scripts in an order that no one would write."""
    rng = random.Random(seed)
    ranges = [(0x20, 0x7E)] * 6 + [(0xA1, 0x24F), (0x370, 0x52F), (0x5D0, 0x6FF), (0x900, 0x97F), (0x3040, 0x30FF)]
    ranges += [(0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0x1F300, 0x1F64F), (0x2000, 0x206F)]
    pieces = [chr(rng.randint(*rng.choice(ranges))) for _ in range(length)]
    return "".join(p if rng.random() > 0.15 else rng.choice([" ", "  ", "\n", "\t", "\r\n", "7", "42"]) for p in pieces)


TEXTS: list[str] = [
    *SHORT_TEXTS,
    _PROSE * 8,
    _CODE * 6 + _RUST * 4,
    "\n".join(f"{i:>5} | {i * i:<8} | {i / 7:.6f} | 第{i}行 🙂" for i in range(60)),
    " ".join(text for text in SHORT_TEXTS if text.strip()),
    " " * 300 + "x" + "\n" * 50 + "\t" * 40,
    *(_random_text(seed, 400) for seed in range(6)),
]
