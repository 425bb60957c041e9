"""Trains on batches from worker processes. A second stream copies them from pinned memory."""

import torch
from figures import tell
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        return torch.full((3, 64, 64), float(index)), index % 10


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(3 * 64 * 64, 4096), nn.ReLU(), nn.Linear(4096, 10)
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    copies = torch.cuda.Stream()
    for images, labels in DataLoader(Samples(), batch_size=64, num_workers=4, pin_memory=True):
        with torch.cuda.stream(copies):
            images = images.cuda(non_blocking=True)
            labels = labels.cuda(non_blocking=True)
        torch.cuda.current_stream().wait_stream(copies)
        images.record_stream(torch.cuda.current_stream())
        labels.record_stream(torch.cuda.current_stream())
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    tell()
