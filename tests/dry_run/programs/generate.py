"""Generates text with a randomly initialised Llama. The argument is greedy, sample or beams."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=8,
    vocab_size=32000,
)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
options = {
    "greedy": {"do_sample": False},
    "sample": {"do_sample": True, "top_p": 0.9},
    "beams": {"num_beams": 4, "do_sample": False},
}[sys.argv[1]]
tokens = torch.randint(3, 32000, (4, 128), device="cuda")
model.generate(tokens, max_new_tokens=64, attention_mask=torch.ones_like(tokens), **options)
