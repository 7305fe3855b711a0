"""Byte-level tokenizers made on the spot: one of single bytes for tests, one with merges learned from given texts.

Both keep `<pad>` apart from `<eos>`: a policy that is padded with EOS cannot be taught to stop. They are Qwen2's
tokenizer with another vocabulary, because `AutoTokenizer` loads that class for a Qwen2 model whatever class was saved:
any other would split texts another way after a round trip through a folder.
"""

from collections.abc import Iterable

from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerBase, Qwen2Tokenizer

PAD = "<pad>"
EOS = "<eos>"
# Lines of `role: content`. A tool call is one JSON object, `{name: arguments}`; the tools themselves are not listed:
# their schemas would fill the 512 positions of the embedded policy. `generation` marks what it writes, for SFT.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}{% if message['content'] or not loop.first %}{{ '\n' }}{% endif %}"
    "{{ {call['function']['name']: call['function']['arguments']} | tojson }}{% endfor %}"
    "{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
# How Transformers reads such an answer back: https://huggingface.co/docs/transformers/main/en/chat_response_parsing
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "assistant: ",
    "fields": {
        "tool_calls": {
            "open_pattern": r'\{"(?P<name>[^"]+)": (?=\{)',
            "close_pattern": r"\}(?:\n|<eos>)",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"close_pattern": "<eos>", "content": "text"},
    },
}


def byte_tokenizer(chat: bool = False) -> PreTrainedTokenizerBase:
    """A tokenizer for tests: 256 single bytes, no merges, then `<pad>` and `<eos>`: 258 tokens.

    Args:
        chat: give it a chat template (`role: content` lines). Without one, conversational data must be refused.
    """
    characters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), PAD, EOS]
    tokenizer = Qwen2Tokenizer(
        vocab={character: i for i, character in enumerate(characters)},
        merges=[],
        pad_token=PAD,
        eos_token=EOS,
        unk_token=None,  # every byte is known; Qwen2's default would add a token beyond the embeddings
        padding_side="left",  # prompts end where the completion starts
    )
    if chat:
        add_chat(tokenizer)
    return tokenizer


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerBase:
    """A byte-level BPE tokenizer of `vocab_size` tokens (256 bytes, `<pad>`, `<eos>`, merges), with a chat template.

    The same texts in the same order give the same tokenizer.
    """
    tokenizer = byte_tokenizer().train_new_from_iterator([list(texts)], vocab_size, show_progress=False)
    add_chat(tokenizer)
    return tokenizer


def add_chat(tokenizer: PreTrainedTokenizerBase) -> None:
    """Gives it the chat template with tool calls, and what reads them back."""
    tokenizer.chat_template, tokenizer.response_template = CHAT_TEMPLATE, RESPONSE_TEMPLATE
