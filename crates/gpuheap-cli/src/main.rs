//! The `gpuheap` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(gpuheap_cli::run(std::env::args_os()))
}
