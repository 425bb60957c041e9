//! Runs `gpuheap replay` as a user does, and checks the output and the exit codes.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

mod advice;
mod bad_input;
mod bounds;
#[path = "../command/mod.rs"]
mod command;
mod figures;
mod json;
mod minimum;
mod process;
mod report;
#[path = "../schema/mod.rs"]
mod schema;
mod support;
