"""Fine-tunes a randomly initialised GPT-2 with LoRA."""

import tempfile

import torch
from figures import tell
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_embd=1024, n_layer=24, n_head=16))
model = get_peft_model(
    model, LoraConfig(r=16, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)
)
tokens = torch.zeros(512, dtype=torch.long)
samples = [{"input_ids": tokens, "labels": tokens} for _ in range(32)]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=4,
        max_steps=4,
        gradient_accumulation_steps=2,
        bf16=True,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    Trainer(model=model, args=arguments, train_dataset=samples).train()
tell()
