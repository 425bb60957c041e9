//! GPU allocation traces: one event model, readers and writers for RMM logs and PyTorch snapshots.
