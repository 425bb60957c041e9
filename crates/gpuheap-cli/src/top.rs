//! `gpuheap top`: shows the screen, or prints one frame of it.

use std::io::{IsTerminal, stdout};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use gpuheap_publish::Detail;
use gpuheap_top::{End, Once, Options};

use crate::exit::{Failure, Verdict};
use crate::values::time;
use crate::{machine, output};

/// Arguments of `gpuheap top`.
#[derive(Args, Debug)]
pub(crate) struct TopArguments {
    /// Time between two readings, e.g. 500ms or 2s
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "500ms")]
    #[arg(allow_hyphen_values = true)]
    interval: Duration,

    /// Print one frame as text, with all processes and lines
    #[arg(long, conflicts_with = "json")]
    once: bool,

    /// Print one frame as JSON
    #[arg(long)]
    json: bool,

    /// With --once or --json, read for this time first, so that growth is known
    #[arg(long, value_name = "TIME", value_parser = after, allow_hyphen_values = true)]
    after: Option<Duration>,

    /// Read a recorded machine instead of this one
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = time(text, "ms", Duration::from_secs(3600), "500ms, 2s")?;
    if interval < Duration::from_millis(100) {
        return Err(format!("'{text}' is less than 100ms, for which a reading takes too long"));
    }
    Ok(interval)
}

fn after(text: &str) -> Result<Duration, String> {
    time(text, "ms", Duration::from_secs(3600), "10s, 1min")
}

/// Shows the screen until a key or a signal ends it; or prints one frame.
pub(crate) fn run(arguments: &TopArguments) -> Result<Verdict, Failure> {
    let is_frame = arguments.once || arguments.json;
    if arguments.after.is_some() && !is_frame {
        return Err(Failure::wrong_use("--after needs --once or --json"));
    }
    if !is_frame && !is_terminal() {
        return Err(Failure::wrong_use(
            "stdout is not a terminal that gpuheap top can draw on; gpuheap top --once prints one \
             frame, gpuheap top --json the same as JSON",
        ));
    }
    let mut machine = machine::read_devices(arguments.machine.as_ref())?;
    if let Err(failure) = machine::devices(&machine, None) {
        // Programs on emulated devices publish too.
        machine.read_programs(Detail::Heaps);
        if machine.programs.is_empty() {
            return Err(failure);
        }
    }
    if is_frame {
        let after = arguments.after.unwrap_or_default();
        let frame = Once::read(&machine, after, arguments.interval);
        let text = if arguments.json { frame.to_json() } else { frame.text(machine::width()) };
        return output::print(&text).map(|()| Verdict::Fine);
    }
    let options = Options {
        interval: arguments.interval,
        is_coloured: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        is_recording: arguments.machine.is_some(),
    };
    match gpuheap_top::run(&machine, options) {
        Ok(End::Key) => Ok(Verdict::Fine),
        // Shells use this exit code for a program that a signal ended.
        Ok(End::Signal(signal)) => Ok(Verdict::Status(128 + signal)),
        Err(error) => Err(Failure::environment_error(format!(
            "the terminal cannot be used: {error}; gpuheap top --once prints one frame"
        ))),
    }
}

/// Returns `true` if stdout is a terminal that can move its cursor.
fn is_terminal() -> bool {
    stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}
