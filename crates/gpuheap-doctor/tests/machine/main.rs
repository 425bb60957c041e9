//! Tests the reports on recorded machines.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod free;
mod garbled;
mod markdown;
mod oom;
mod pause;
#[path = "../recorded/mod.rs"]
mod recorded;
mod rules;
mod status;
mod support;
mod topics;
