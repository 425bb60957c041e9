//! Recorded machines: what is said of them.

mod mutated;
mod rules;
mod status;
mod support;
