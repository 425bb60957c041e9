"""Fine-tunes a randomly initialised Llama in bf16, with LoRA and gradient checkpoints."""

import tempfile

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=8,
    vocab_size=32000,
)
model = get_peft_model(
    LlamaForCausalLM(config).to(torch.bfloat16),
    LoraConfig(r=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
)
tokens = [
    torch.randint(0, 32000, (512,), generator=torch.Generator().manual_seed(number))
    for number in range(64)
]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=4,
        max_steps=6,
        report_to=[],
        save_strategy="no",
        bf16=True,
        gradient_checkpointing=True,
        logging_steps=100,
        disable_tqdm=True,
    )
    samples = [{"input_ids": sample, "labels": sample} for sample in tokens]
    Trainer(model, arguments, train_dataset=samples).train()
