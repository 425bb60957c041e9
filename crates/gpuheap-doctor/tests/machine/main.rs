//! Recorded machines: what is said of them.

mod status;
mod support;
