//! Runs the program once.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::card::Device;
use crate::folder::Folder;
use crate::reports::{self, Process};
use crate::signals::{Running, Signals};
use crate::stand_ins::StandIns;
use crate::verdict::Ended;
use crate::{Error, Options, Progress, environment};

/// Extra time after the time limit in which a program with optimiser steps may complete its current
/// step. A program without steps gets SIGTERM at the time limit.
const STEP: Duration = Duration::from_secs(5);
/// Time from SIGTERM to SIGKILL, in which the program writes its reports. Writing a recording of
/// 400,000 events takes 5 s on a busy machine.
const GRACE: Duration = Duration::from_secs(10);
/// Longest pause between two checks of the program.
const PAUSE: Duration = Duration::from_millis(50);

/// Output of a program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// The program inherits standard input, output and error.
    Passed,
    /// Standard input is empty. Standard output is dropped, and standard error is kept.
    Dropped,
}

/// A completed run.
pub(crate) struct Run {
    pub(crate) device: Device,
    pub(crate) ended: Ended,
    pub(crate) processes: Vec<Process>,
    pub(crate) seconds: f64,
    /// Peak of the host memory of the program's first process, in bytes.
    pub(crate) host_bytes: u64,
    /// Last lines that the program wrote to standard error. Empty with [`Output::Passed`], because
    /// the user has then seen them.
    pub(crate) errors: String,
    /// `true` to count a program as fitting even if managed memory exceeds the device's memory.
    pub(crate) allows_oversubscription: bool,
    /// Number of devices.
    pub(crate) device_count: u32,
    /// Keeps the folder, which contains the snapshots, until the run is dropped.
    pub(crate) _folder: Folder,
}

/// Changes that one run makes to the user's program.
#[derive(Debug, Clone, Default)]
pub(crate) struct Change<'c> {
    /// Names and values of environment variables. A value also replaces `{NAME}` in arguments.
    pub(crate) values: Vec<(&'c str, u64)>,
    /// Names of the remedies that the hook switches on in the program, separated by commas.
    pub(crate) remedy: &'c str,
    /// The only line of the program at which [`Options::counts`] applies; `None` for all lines.
    pub(crate) line: Option<&'c str>,
}

/// Runs the program once, and waits until it ends.
pub(crate) fn run(
    options: &Options,
    stand_ins: &StandIns,
    device: &Device,
    change: &Change<'_>,
    output: Output,
    signals: &Signals,
    progress: &dyn Progress,
) -> Result<Run, Error> {
    let folder = Folder::new(stand_ins)?;
    let errors = folder.reports().join("stderr");
    let mut command = Command::new(&options.program);
    command.args(arguments(&options.arguments, change));
    for variable in environment::REMOVED {
        command.env_remove(variable);
    }
    command.envs(environment::variables(options, device, &folder));
    command.envs(change.values.iter().map(|(variable, value)| (variable, value.to_string())));
    command.envs(environment::remedy(change.remedy));
    command.envs(change.line.map(|line| (environment::SMALLEST_LINE, line)));
    if output == Output::Dropped {
        let file = File::create(&errors).map_err(|error| {
            Error::Environment(format!("{}: {error}; set TMPDIR", errors.display()))
        })?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
    }
    let began = Instant::now();
    let (child, running) =
        signals.start(&mut command).map_err(|error| not_started(options, &error))?;
    let (status, is_ended, host_bytes) =
        wait(child, &running, options.time_limit, &folder.reports(), progress)?;
    let processes = reports::read(&folder.reports());
    let by_hook = processes
        .iter()
        .filter_map(|process| process.torch.as_ref())
        .any(|torch| torch.ended.as_deref() == Some("time"));
    drop(running);
    let ended = match ended(status) {
        _ if is_ended || by_hook => Ended::TimeLimit,
        _ if signals.is_interrupted() => Ended::Interrupted,
        ended => ended,
    };
    Ok(Run {
        device: device.clone(),
        ended,
        processes,
        seconds: began.elapsed().as_secs_f64(),
        host_bytes,
        errors: last_lines(&errors),
        allows_oversubscription: options.allow_oversubscription,
        device_count: options.devices,
        _folder: folder,
    })
}

/// Returns the arguments with `{NAME}` replaced by the value of the variable `NAME`.
fn arguments(given: &[OsString], change: &Change<'_>) -> Vec<OsString> {
    let replaced = |argument: &OsString| match argument.to_str() {
        Some(text) => change
            .values
            .iter()
            .fold(text.to_owned(), |text, (variable, value)| {
                text.replace(&format!("{{{variable}}}"), &value.to_string())
            })
            .into(),
        None => argument.clone(),
    };
    given.iter().map(replaced).collect()
}

fn not_started(options: &Options, error: &std::io::Error) -> Error {
    let program = options.program.to_string_lossy();
    Error::WrongUse(match error.kind() {
        ErrorKind::NotFound => format!(
            "{program}: there is no such program; give its path, or a name that PATH has: gpuheap \
             dry-run -- python train.py"
        ),
        ErrorKind::PermissionDenied => format!(
            "{program}: it cannot be executed; for a Python file write gpuheap dry-run -- python \
             {program}"
        ),
        _ => format!("{program}: it cannot be started: {error}"),
    })
}

/// Waits for the end of the program. Returns the status, whether the time limit ended the program,
/// and the peak of host memory in bytes.
fn wait(
    mut child: Child,
    running: &Running<'_>,
    limit: Option<Duration>,
    reports: &Path,
    progress: &dyn Progress,
) -> Result<(ExitStatus, bool, u64), Error> {
    let began = Instant::now();
    let mut end = End { limit, asked: None };
    let mut watch = Watch::default();
    let mut pause = Duration::from_millis(1);
    let mut host_bytes = 0;
    loop {
        let status = child.try_wait().map_err(|error| {
            Error::Environment(format!("the program cannot be waited for: {error}"))
        })?;
        if let Some(status) = status {
            let is_at_limit = end.asked.is_some() && !running.is_ending();
            return Ok((status, is_at_limit, host_bytes));
        }
        host_bytes = host_bytes.max(resident_bytes(child.id()));
        watch.check(reports, progress);
        end.enforce(began.elapsed(), running, reports);
        thread::sleep(pause);
        pause = (pause * 2).min(PAUSE);
    }
}

/// End of a program that reaches its time limit. Also the end of a program that keeps running after
/// the `gpuheap` command has passed a signal on to it.
struct End {
    limit: Option<Duration>,
    /// Time from the start to SIGTERM; `None` before SIGTERM is sent.
    asked: Option<Duration>,
}

impl End {
    fn enforce(&mut self, elapsed: Duration, program: &Running<'_>, reports: &Path) {
        let is_late =
            |limit| elapsed >= limit && (elapsed >= limit + STEP || !reports::has_steps(reports));
        match self.asked {
            // The command got a signal, and has already sent it to the program.
            None if program.is_ending() => self.asked = Some(elapsed),
            None if self.limit.is_some_and(is_late) => {
                program.end(false);
                self.asked = Some(elapsed);
            }
            Some(asked) if elapsed > asked + GRACE => program.end(true),
            _ => {}
        }
    }
}

/// Check, once a second, for the Python hook's warning that a line reads results very often.
#[derive(Default)]
struct Watch {
    last: Option<Instant>,
    is_noted: bool,
}

impl Watch {
    fn check(&mut self, reports: &Path, progress: &dyn Progress) {
        const EVERY: Duration = Duration::from_secs(1);
        if self.is_noted || self.last.is_some_and(|last| last.elapsed() < EVERY) {
            return;
        }
        self.last = Some(Instant::now());
        let found = reports::read(reports).into_iter().find_map(|process| process.many_reads);
        if let Some(line) = found.as_deref().and_then(reports::describe_many_reads) {
            self.is_noted = true;
            progress.note(&format!(
                "the program has read from the device {line}; kernels do not run, so a loop that \
                 waits for a value may never end. Set the value with --read, or end it with Ctrl-C"
            ));
        }
    }
}

/// Returns the peak of a process's host memory, in bytes; 0 if the process has ended.
fn resident_bytes(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = most.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(0, |kib| kib << 10)
}

fn ended(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Exit(code),
        (None, signal) => Ended::Signal(signal.unwrap_or(0)),
    }
}

/// Returns the last lines of a file; an empty text if the file does not exist.
fn last_lines(file: &Path) -> String {
    const LINES: usize = 20;
    let text = fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
