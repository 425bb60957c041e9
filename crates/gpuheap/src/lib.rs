//! GPU memory that can be accounted for, and that comes back.
