//! Parses the command line, and reports invalid arguments.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand};
use gpuheap::Size;
use gpuheap::emu::Profile;
use gpuheap_replay::cards::{self, Card};
use gpuheap_replay::models::SettingError;
use gpuheap_replay::replay::Pool;
use gpuheap_replay::tune::Family;

use crate::doctor::DoctorArguments;
use crate::dry_run::DryRunArguments;
use crate::emulate::EmulateArguments;
use crate::exit::Failure;
use crate::explain::ExplainArguments;
use crate::export::ExportArguments;
use crate::free::{FreeArguments, WaitArguments};
use crate::pause::PauseArguments;
use crate::programs::RecordArguments;
use crate::report::ReportArguments;
use crate::run::RunArguments;
use crate::status::StatusArguments;
use crate::top::TopArguments;
use crate::values::{GRANULE, TypedSize, bytes, profile, refuse_option, size, time};

/// GPU memory that you can account for
#[derive(Parser, Debug)]
#[command(name = "gpuheap", version, max_term_width = 80, arg_required_else_help = false)]
#[command(after_help = ALL_EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Commands of `gpuheap`.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Say why memory ran out and how to avoid it, from recorded allocations
    #[command(long_about = REPLAY, after_help = EXIT_CODES, after_long_help = REPLAY_AFTER)]
    Replay(Box<ReplayArguments>),

    /// Say what a recorded program did with GPU memory, by line and thread
    #[command(long_about = REPORT, after_help = REPORT_EXIT_CODES)]
    Report(ReportArguments),

    /// Run a program without a GPU, and say on which card it fits
    #[command(long_about = DRY_RUN, after_help = DRY_RUN_EXIT_CODES, after_long_help = DRY_RUN_AFTER)]
    DryRun(Box<DryRunArguments>),

    /// Run a program and record its GPU memory; hold it to a limit
    #[command(long_about = RUN, after_help = RUN_EXIT_CODES)]
    Run(Box<RunArguments>),

    /// Record a program that runs already; with --stop end the recording
    #[command(long_about = RECORD, after_help = RECORD_EXIT_CODES)]
    Record(RecordArguments),

    /// Run a program on an emulated GPU, without a verdict
    #[command(long_about = EMULATE, after_help = EMULATE_EXIT_CODES)]
    Emulate(EmulateArguments),

    /// Account for each GPU's memory, by process
    #[command(long_about = STATUS, after_help = STATUS_EXIT_CODES)]
    Status(StatusArguments),

    /// Show GPU memory as it changes, and the lines that grow
    #[command(long_about = TOP, after_help = TOP_EXIT_CODES)]
    Top(TopArguments),

    /// Serve metrics of GPU memory to Prometheus
    #[command(long_about = EXPORT, after_help = EXPORT_EXIT_CODES)]
    Export(ExportArguments),

    /// Find out why GPU memory does not come back
    #[command(long_about = DOCTOR, after_help = DOCTOR_EXIT_CODES)]
    Doctor(DoctorArguments),

    /// Explain a finding, a topic of WSL2, or an out-of-memory error from standard input
    #[command(after_help = "Exit codes: 0 explained, 2 wrong use or a text without a known error")]
    Explain(ExplainArguments),

    /// Wait until memory of a GPU is free
    #[command(after_help = WAIT_EXIT_CODES)]
    Wait(WaitArguments),

    /// Say how to get GPU memory back; with --yes end proven orphans
    #[command(long_about = FREE, after_help = FREE_EXIT_CODES)]
    Free(FreeArguments),

    /// Show the memory that pausing a process frees; with --yes pause it
    #[command(long_about = PAUSE, after_help = PAUSE_EXIT_CODES)]
    Pause(PauseArguments),

    /// Check that a paused process fits on its GPUs; with --yes resume it
    #[command(long_about = RESUME, after_help = PAUSE_EXIT_CODES)]
    Resume(PauseArguments),

    /// Probe CUDA for `doctor --probe-cuda`, a line of JSON for each probe
    #[command(hide = true)]
    ProbeCuda,
}

const ALL_EXIT_CODES: &str = "Exit codes: 0 fine, 1 findings, 2 wrong use or unreadable input, 3 \
                              environment error (no device, no permission), 4 fine as far as is \
                              known (dry-run)";

const EXIT_CODES: &str = "Exit codes: 0 the program gets through, 1 memory ran out, 2 wrong use \
                          or unreadable input, 3 environment error (no device, no permission)";

const DRY_RUN: &str = "\
Run a program and its children on an emulated GPU whose kernels do nothing, and say on which card \
it fits, what it takes at its peak and which lines hold it, and what would make it fit.

PyTorch runs unmodified, with its own allocator: peaks are those of a GPU. Results are chosen, so \
sizes that depend on results are not known. No GPU is needed, and one that is there is not \
touched. The program's output passes; the verdict follows on stderr. Of several runs, the first \
one's output passes.";

const DRY_RUN_AFTER: &str = "\
Cards: gpuheap replay --card list

Exit codes:
  0  the program fits: on every card, or with a value of --find-batch
  1  memory runs out, or managed memory is more than the device has
  2  wrong use, or a program that cannot be started
  3  no verdict: the program failed for another reason, used no GPU, has its
     CUDA runtime linked statically, or was ended before its first optimiser
     step; or the emulated libraries are missing
  4  fits as far as is known: results that a dry run does not have decided sizes
Examples:
  gpuheap dry-run --card \"RTX 4090\" -- python train.py
  gpuheap dry-run --card \"T4,L4,RTX 4090\" --steps 3 -- python train.py
  gpuheap dry-run --card L4 --find-batch BATCH=8..64 -- python train.py {BATCH}";

const DRY_RUN_EXIT_CODES: &str = "Exit codes: 0 fits, 1 memory runs out, 2 wrong use, 3 no \
                                  verdict, 4 fits as far as is known";

const RUN: &str = include_str!("help/run.txt").trim_ascii_end();

const RUN_EXIT_CODES: &str = "\
Exit codes: the program's own, 128 and the signal's number if a signal ended it; 1 --max-peak or \
--max-leak was exceeded; 2 wrong use, or a program that cannot be recorded; 3 a library is missing
Examples:
  gpuheap run -- python train.py
  gpuheap run --limit 8GiB --max-leak 0 -- ./program";

const EMULATE: &str = include_str!("help/emulate.txt").trim_ascii_end();

const EMULATE_EXIT_CODES: &str = "\
Exit codes: the program's own, 128 and the signal's number if a signal ended it; 2 wrong use, 3 \
the program cannot be run, or the emulated libraries are missing
Example: gpuheap emulate --device wsl2-rtx4060 -- python program.py";

const STATUS: &str = include_str!("help/status.txt").trim_ascii_end();

const EXPORT: &str = include_str!("help/export.txt").trim_ascii_end();

const EXPORT_EXIT_CODES: &str = "\
Exit codes: 0 printed, or ended by SIGTERM or Ctrl-C; 2 wrong use, unreadable input, or an address \
that cannot be used; 3 with --once: no GPU, or the driver does not answer
Examples:
  gpuheap export
  gpuheap export --listen 0.0.0.0:9837 --interval 30s
  gpuheap export --once | promtool check metrics";

const DOCTOR: &str = include_str!("help/doctor.txt").trim_ascii_end();

const DOCTOR_EXIT_CODES: &str = "Exit codes: 0 healthy, 1 findings, 2 wrong use or unreadable \
                                 input, 3 no GPU that answers, and no finding about it";

const WAIT_EXIT_CODES: &str = "Exit codes: 0 free, 1 not free in time, 2 wrong use or unreadable \
                               input, 3 no GPU, or the driver does not answer";

const FREE_EXIT_CODES: &str = "Exit codes: 0 shown, or memory came back; 1 with --yes: none did; \
                               2 wrong use or unreadable input; 3 no GPU, or the driver does not \
                               answer";

const FREE: &str = include_str!("help/free.txt").trim_ascii_end();

const PAUSE: &str = include_str!("help/pause.txt").trim_ascii_end();

const PAUSE_EXIT_CODES: &str = "Exit codes: 0 shown or moved, 2 wrong use, 3 no GPU, the process \
                                cannot be moved, or the driver fails";

const RESUME: &str = include_str!("help/resume.txt").trim_ascii_end();

const RECORD: &str = "\
Record the GPU allocations of a program that runs already. Its heaps record, so the program must \
use gpuheap, and allow changes: GPUHEAP_PUBLISH=control. The program chooses the file: \
gpuheap-PID.gph in its working folder. A file that exists is kept. gpuheap run records any CUDA \
program from its start.";

const RECORD_EXIT_CODES: &str = "Exit codes: 0 started or ended, 2 wrong use, or the process does \
                                 not publish, 3 it refuses or does not answer";

const STATUS_EXIT_CODES: &str = "Exit codes: 0 shown, 2 wrong use or unreadable input, 3 no GPU, or \
                                 the driver does not answer";

const TOP: &str = include_str!("help/top.txt").trim_ascii_end();

const TOP_EXIT_CODES: &str = "\
Exit codes: 0 shown; 128 and the signal's number if a signal ended it; 2 wrong use, no terminal, \
or unreadable input; 3 no GPU, or the driver does not answer
Examples:
  gpuheap top
  gpuheap top --once --after 90s   which line grew over a minute";

const REPORT: &str = include_str!("help/report.txt").trim_ascii_end();

const REPORT_EXIT_CODES: &str = "Exit codes: 0 reported, 2 wrong use or unreadable input, 3 the \
                                 report cannot be written";

const REPLAY: &str = include_str!("help/replay.txt").trim_ascii_end();

const REPLAY_AFTER: &str = include_str!("help/replay_after.txt").trim_ascii_end();

/// Names of the commands, for errors.
const COMMANDS: [&str; 15] = [
    "replay", "report", "run", "record", "dry-run", "emulate", "status", "top", "export", "doctor",
    "explain", "wait", "free", "pause", "resume",
];

/// Frameworks whose settings `--tune` searches.
const FAMILIES: [Family; 3] = [Family::Torch, Family::Rmm, Family::CuPy];

/// Arguments of `gpuheap replay`.
#[derive(Args, Debug)]
pub(crate) struct ReplayArguments {
    /// Files to replay, - for standard input
    #[arg(value_name = "TRACE", required_unless_present_any = ["card", "tune"])]
    pub(crate) traces: Vec<PathBuf>,

    /// A pool to try; may be given several times [default: by the trace]
    #[arg(long = "pool", value_name = "NAME", value_parser = pool)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) pools: Vec<Pool>,

    /// The pool that decides the exit code [default: each --pool, else the recorded allocator]
    #[arg(long, value_name = "NAME", value_parser = pool, allow_hyphen_values = true)]
    pub(crate) check: Option<Pool>,

    /// Usable memory of the emulated device
    #[arg(long, value_name = "SIZE", value_parser = bytes, allow_hyphen_values = true)]
    pub(crate) device_memory: Option<TypedSize>,

    /// Kind of the emulated device [default: h200]
    #[arg(long, value_name = "NAME", value_parser = profile, allow_hyphen_values = true)]
    pub(crate) profile: Option<Profile>,

    /// Name of a card, or `list` to print all known cards
    #[arg(long, value_name = "NAME", value_parser = card, allow_hyphen_values = true)]
    #[arg(conflicts_with_all = ["profile", "device_memory"])]
    pub(crate) card: Option<CardOption>,

    /// Hard limit: a pool never takes more than this from the driver
    #[arg(long, value_name = "SIZE", value_parser = limit, allow_hyphen_values = true)]
    pub(crate) limit: Option<TypedLimit>,

    /// Freed bytes that the pool `driver` keeps, 0 for none [default: all]
    #[arg(long, value_name = "SIZE", value_parser = size_or_zero, allow_hyphen_values = true)]
    pub(crate) release_threshold: Option<Size>,

    /// For each pool, find the smallest device memory that is enough, to within 2 MiB
    #[arg(long)]
    pub(crate) find_minimum: bool,

    /// Let the work of every stream end this much later, e.g. 2ms or 100us; without it work ends
    /// at once
    #[arg(long, value_name = "TIME", value_parser = delay, allow_hyphen_values = true)]
    pub(crate) delay: Option<Duration>,

    /// Replay on a real device instead, e.g. cuda:0
    #[arg(long, value_name = "cuda:N", value_parser = cuda, allow_hyphen_values = true)]
    pub(crate) device: Option<u16>,

    /// Leave out the blocks that were live before a snapshot's recording began
    #[arg(long)]
    pub(crate) recorded_only: bool,

    /// Instead of a replay, search for the best settings of torch, rmm or cupy [default: by the
    /// trace's format]
    #[arg(long, value_name = "FAMILY", num_args = 0..=1, default_missing_value = "")]
    #[arg(conflicts_with_all = ["find_minimum", "at", "pools", "check", "limit"])]
    pub(crate) tune: Option<String>,

    /// Show the recorded memory after this event, without a replay: who holds it, and where it lies
    #[arg(long, value_name = "EVENT", value_parser = event, conflicts_with_all = ["json", "find_minimum"])]
    pub(crate) at: Option<u64>,

    /// Show every remedy, card and holder, and not only those that fit on a screen
    #[arg(long, short, conflicts_with_all = ["json", "tune", "at"])]
    pub(crate) verbose: bool,

    /// Print one JSON array, one object for each trace
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum CardOption {
    /// The list of all cards.
    List,
    /// One card.
    Card(&'static Card),
}

/// A limit, with the text that the user typed.
#[derive(Clone, Debug)]
pub(crate) struct TypedLimit {
    pub(crate) size: Size,
    pub(crate) typed: String,
}

impl ReplayArguments {
    /// Treats the value of `--tune` as a trace if it names no framework: `--tune run.csv`.
    fn sort_out_tune(&mut self) {
        if let Some(text) = &mut self.tune
            && !text.is_empty()
            && !FAMILIES.iter().any(|family| family.name() == text)
        {
            self.traces.insert(0, PathBuf::from(std::mem::take(text)));
        }
    }

    /// Returns the framework whose settings `--tune` searches; `None`: the trace's format decides.
    pub(crate) fn family(&self) -> Option<Family> {
        let text = self.tune.as_ref()?;
        FAMILIES.into_iter().find(|family| family.name() == text)
    }

    /// Refuses options that contradict each other.
    fn check(&self) -> Result<(), Failure> {
        if self.traces.is_empty() && !matches!(self.card, Some(CardOption::List)) {
            return Err(Failure::wrong_use(NO_TRACE));
        }
        let Some(ordinal) = self.device else { return Ok(()) };
        let refused = [
            (self.device_memory.is_some(), "--device-memory"),
            (self.profile.is_some(), "--profile"),
            (self.card.is_some(), "--card"),
            (self.find_minimum, "--find-minimum"),
            (self.delay.is_some(), "--delay"),
        ];
        match refused.into_iter().find(|(given, _)| *given) {
            None => Ok(()),
            Some((_, option)) => Err(Failure::wrong_use(format!(
                "{option} needs an emulated device, and --device cuda:{ordinal} asks for a real \
                 one; leave one of the two out"
            ))),
        }
    }
}

/// Result of parsing a command line.
pub(crate) enum Parsed {
    /// A command to run.
    Command(Command),
    /// A text to print: help or the version.
    Text(String),
}

/// Parses the process's arguments.
pub(crate) fn parse(arguments: Vec<OsString>) -> Result<Parsed, Failure> {
    let command = arguments.get(1).and_then(|name| name.to_str()).map(str::to_owned);
    let parsed = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                return Ok(Parsed::Text(error.render().to_string()));
            }
            _ => return Err(Failure::wrong_use(explain(&error, command))),
        },
    };
    let mut command = parsed.command;
    if let Command::DryRun(arguments) = &command {
        arguments.check()?;
    }
    if let Command::Replay(arguments) = &mut command {
        arguments.sort_out_tune();
        arguments.check()?;
    }
    Ok(Parsed::Command(command))
}

const NO_TRACE: &str = "no trace was given; name at least one file: gpuheap replay TRACE";

/// Shortens clap's error to one line, with the problem and the remedy.
fn explain(error: &clap::Error, command: Option<String>) -> String {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => Some(texts.join(", ")),
        _ => None,
    };
    let argument = context(ContextKind::InvalidArg).unwrap_or_default();
    let command = command.filter(|name| COMMANDS.contains(&name.as_str()));
    let see = format!("see gpuheap {} --help", command.as_deref().unwrap_or(COMMANDS[0]));
    match error.kind() {
        ErrorKind::ValueValidation => {
            let option = argument.split(' ').next().unwrap_or_default();
            let reason = std::error::Error::source(error).map(ToString::to_string);
            format!("{option}: {}", reason.unwrap_or_else(|| "the value is not valid".to_owned()))
        }
        ErrorKind::UnknownArgument
            if matches!(command.as_deref(), Some("dry-run" | "emulate" | "run"))
                && !argument.starts_with('-') =>
        {
            let command = command.unwrap_or_default();
            format!("write -- before the program: gpuheap {command} -- {argument}")
        }
        ErrorKind::UnknownArgument => match context(ContextKind::SuggestedArg) {
            Some(suggested) => {
                format!("there is no option '{argument}'; did you mean {suggested}?")
            }
            None if argument.starts_with('-') => format!("there is no option '{argument}'; {see}"),
            None => format!("'{argument}' is one argument too many; {see}"),
        },
        ErrorKind::InvalidSubcommand => {
            let command = context(ContextKind::InvalidSubcommand).unwrap_or_default();
            format!(
                "there is no command '{command}'; the commands are {} and help",
                COMMANDS.join(", ")
            )
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            "no command was given; write gpuheap replay TRACE, or see gpuheap --help".to_owned()
        }
        ErrorKind::MissingRequiredArgument if command.as_deref() == Some("replay") => {
            NO_TRACE.to_owned()
        }
        ErrorKind::MissingRequiredArgument if command.as_deref() == Some("report") => {
            "no file was given; name at least one: gpuheap report FILE".to_owned()
        }
        ErrorKind::MissingRequiredArgument if command.as_deref() == Some("dry-run") => {
            "no program was given; end with it: gpuheap dry-run -- python train.py".to_owned()
        }
        ErrorKind::MissingRequiredArgument if command.as_deref() == Some("run") => {
            "no program was given; end with it: gpuheap run -- python train.py".to_owned()
        }
        ErrorKind::MissingRequiredArgument if command.as_deref() == Some("emulate") => {
            "no program was given; end with it: gpuheap emulate -- python script.py".to_owned()
        }
        ErrorKind::MissingRequiredArgument => format!("{argument} is missing; {see}"),
        ErrorKind::InvalidValue => format!("{argument} needs a value; {see}"),
        ErrorKind::ArgumentConflict => match context(ContextKind::PriorArg) {
            Some(other) if !argument.starts_with(other.split(' ').next().unwrap_or_default()) => {
                format!("{argument} cannot be given with {other}; leave one of the two out")
            }
            _ => format!("{argument} was given more than once; give it once"),
        },
        _ => {
            let text = error.render().to_string();
            let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
            format!("{first}; {see}")
        }
    }
}

/// Parses a limit. The minimum is one granule, because a pool cannot take less.
fn limit(text: &str) -> Result<TypedLimit, String> {
    match size(text)? {
        Size::Bytes(bytes) if bytes < GRANULE => Err(format!(
            "'{text}' is less than the 2 MiB that a device hands out at a time; write bytes \
             (10000000), a unit (100M, 1.5GiB) or a share of the device (50%)"
        )),
        size => Ok(TypedLimit { size, typed: text.trim().to_owned() }),
    }
}

fn size_or_zero(text: &str) -> Result<Size, String> {
    if text == "0" { Ok(Size::Bytes(0)) } else { size(text) }
}

fn pool(text: &str) -> Result<Pool, String> {
    refuse_option(text)?;
    Pool::parse(text).map_err(|error: SettingError| error.to_string())
}

fn card(text: &str) -> Result<CardOption, String> {
    refuse_option(text)?;
    if text == "list" {
        return Ok(CardOption::List);
    }
    match cards::find(text) {
        Ok(card) => Ok(CardOption::Card(card)),
        Err(error) => Err(format!("{error}; --card list shows all")),
    }
}

fn event(text: &str) -> Result<u64, String> {
    refuse_option(text)?;
    text.replace(',', "").parse().map_err(|_| {
        format!("'{text}' is not an event; give its number, as the report does (1,519 or 1519)")
    })
}

fn cuda(text: &str) -> Result<u16, String> {
    if let Some(what) = text.strip_prefix("emulated") {
        let what = what.trim_start_matches(':');
        let (size, profile) = match Profile::named(what) {
            Some(_) => ("2GiB", what),
            None if bytes(what).is_ok() => (what, "t4"),
            None => ("2GiB", "t4"),
        };
        return Err(format!(
            "'{text}' is not a real device; leave --device out for an emulated one, and say what it \
             is like by --device-memory {size} or --profile {profile}"
        ));
    }
    text.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok()).ok_or_else(|| {
        format!(
            "'{text}' is not a real device; write cuda:0, or leave --device out for an emulated one"
        )
    })
}

/// Parses a delay. An hour is the maximum: no stream lags its host by more.
fn delay(text: &str) -> Result<Duration, String> {
    time(text, "ns", Duration::from_secs(3600), "2ms, 100us")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_passes_claps_checks() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
