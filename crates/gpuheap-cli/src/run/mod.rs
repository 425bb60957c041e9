//! `gpuheap run`: runs a program with the recorder, and prints a summary of its GPU memory.

mod program;
mod summary;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use clap::{Args, ValueEnum};
use gpuheap::Size;
use gpuheap_dry_run::{
    Emulation, Error, FOLDER, FrameworkHooks, emulate_with_runtime, folders, run_passing_signals,
};
use rustix::process::getuid;
use tempfile::NamedTempFile;

use crate::emulate::status;
use crate::exit::{Failure, Verdict};
use crate::output;
use crate::values::{TypedSize, bytes, devices, size};
use summary::{Hints, Summary};

/// File name of the recorder, in cargo's folder and in the Python package.
const LIBRARY: &str = "libgpuheap_preload.so";

/// Variable that makes a program's heaps record themselves.
const RECORD: &str = "GPUHEAP_RECORD";

/// Variable that names the library that NVTX loads.
const NVTX: &str = "NVTX_INJECTION64_PATH";

/// Ending of captures.
const ENDING: &str = ".gph";

/// Arguments of `gpuheap run`.
#[derive(Args, Debug)]
pub(crate) struct RunArguments {
    /// Path of the captures; run.gph becomes run.PID.gph [default: PROGRAM.gph]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Let requests for device memory fail above a size, or above a share of the device, e.g. 80%
    #[arg(long, value_name = "SIZE", value_parser = size, allow_hyphen_values = true)]
    limit: Option<Size>,

    /// Let the processes of the run share the limit
    #[arg(long, requires = "limit")]
    limit_tree: bool,

    /// Exit with 1 if a process's peak on a device is above this size
    #[arg(long, value_name = "SIZE", value_parser = bytes, allow_hyphen_values = true)]
    max_peak: Option<TypedSize>,

    /// Exit with 1 if a process holds more than this size when it ends; 0 is valid
    #[arg(long, value_name = "SIZE", value_parser = leak, allow_hyphen_values = true)]
    max_leak: Option<u64>,

    /// Let the N-th request of each process fail for lack of memory
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    fail_nth: Option<u64>,

    /// Let all requests of a process fail once it has requested this size in total
    #[arg(long, value_name = "SIZE", value_parser = bytes, allow_hyphen_values = true)]
    fail_after: Option<TypedSize>,

    /// Run on an emulated GPU: h200, rtx4090, t4, 16GiB; see gpuheap emulate [default: h200]
    #[arg(long, value_name = "PROFILE", value_parser = devices)]
    #[arg(num_args = 0..=1, default_missing_value = "h200", hide_default_value = true)]
    emulate: Option<String>,

    /// Text at the end, on stderr
    #[arg(long, value_name = "FORM", value_enum, default_value = "summary")]
    on_exit: OnExit,

    /// Record copies: bytes, time, pageable or pinned memory, repeated uploads
    #[arg(long)]
    copies: bool,

    /// Record no native stacks
    #[arg(long)]
    no_stacks: bool,

    /// Record no frames of Python
    #[arg(long)]
    no_python: bool,

    /// Also record the blocks (tensors and arrays) inside the pools of PyTorch, CuPy and RMM
    #[arg(long)]
    frameworks: bool,

    /// Name the pools and blocks of gpuheap's heaps for the profiler that runs the program
    #[arg(long)]
    nvtx: bool,

    /// End the recording of a process when its capture reaches this size
    #[arg(long, value_name = "SIZE", value_parser = bytes, allow_hyphen_values = true)]
    max_size: Option<TypedSize>,

    /// Folder of the recorder and the emulated libraries [default: this installation's]
    #[arg(long, value_name = "FOLDER", hide = true)]
    stand_ins: Option<PathBuf>,

    /// The program and its arguments, after --
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum OnExit {
    /// A summary for people.
    Summary,
    /// Nothing.
    None,
    /// One JSON object.
    Json,
}

/// Runs the program. The command ends with the program's exit code, unless a gate (`--max-peak` or
/// `--max-leak`) failed or could not be checked.
pub(crate) fn run(arguments: &RunArguments) -> Result<Verdict, Failure> {
    if env::var_os(RECORD).is_some_and(|value| !value.is_empty()) {
        return Err(Failure::wrong_use(format!(
            "{RECORD} is set: a heap of the program would record the same memory again; unset it, \
             or run the program without gpuheap run"
        )));
    }
    if arguments.nvtx && env::var_os(NVTX).is_none_or(|path| path.is_empty()) {
        return Err(Failure::wrong_use(format!(
            "--nvtx: no profiler runs this command ({NVTX} is not set); write nsys profile gpuheap \
             run --nvtx ..."
        )));
    }
    let library = library(arguments.stand_ins.as_deref())?;
    let Some((program, rest)) = arguments.program.split_first() else {
        return Err(Failure::wrong_use("no program was given"));
    };
    program::check(program)?;
    let captures = Captures::new(arguments.output.as_deref(), program)?;
    let mut variables = variables(arguments, &library, &captures);
    let ledger =
        arguments.limit_tree.then(|| shared_file(&env::temp_dir(), LEDGER_BYTES)).transpose()?;
    variables.extend(ledger.iter().map(|file| ("GPUHEAP_RUN_LEDGER", file.path().into())));
    let hooks = arguments.frameworks.then(FrameworkHooks::new).transpose();
    let hooks = hooks.map_err(Failure::environment_error)?;
    variables.extend(hooks.iter().flat_map(FrameworkHooks::variables));
    let ended = start(arguments, program, rest, variables)?;
    let summaries = summary::read(&captures.found());
    let hints = Hints { emulate: arguments.emulate.is_none(), frameworks: !arguments.frameworks };
    match arguments.on_exit {
        OnExit::Summary => output::report(&summary::render(&summaries, hints)),
        OnExit::Json => output::report(&summary::json(&summaries, status(ended))),
        OnExit::None => {}
    }
    let passed = check_gates(arguments, &summaries);
    match status(ended) {
        0 if !passed => Ok(Verdict::Findings),
        code => Ok(Verdict::Status(code)),
    }
}

fn start(
    arguments: &RunArguments,
    program: &OsString,
    rest: &[OsString],
    mut variables: Vec<(&'static str, OsString)>,
) -> Result<ExitStatus, Failure> {
    let Some(device) = &arguments.emulate else {
        let mut command = Command::new(program);
        command.args(rest).envs(variables);
        return run_passing_signals(&mut command)
            .map_err(|error| Failure::wrong_use(format!("{}: {error}", program.display())));
    };
    variables.push(("GPUHEAP_EMULATED_DEVICE", device.into()));
    let emulation = Emulation {
        program: program.clone(),
        arguments: rest.to_vec(),
        variables,
        stand_ins: arguments.stand_ins.clone(),
    };
    emulate_with_runtime(&emulation).map_err(|error| match error {
        Error::WrongUse(line) => Failure::wrong_use(line),
        error => Failure::environment_error(error),
    })
}

/// Size in bytes of the file through which a run's processes share a limit. The recorder uses only
/// a part of it.
const LEDGER_BYTES: u64 = 512 << 10;

/// Makes a temporary file that the processes of a run share. Processes of root can change their
/// user, so root's file is open to all users.
fn shared_file(folder: &Path, bytes: u64) -> Result<NamedTempFile, Failure> {
    let mode = if getuid().is_root() { 0o666 } else { 0o600 };
    let made = tempfile::Builder::new().prefix(".gpuheap-run-").tempfile_in(folder);
    let made = made.and_then(|file| {
        file.as_file().set_len(bytes)?;
        file.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
        Ok(file)
    });
    made.map_err(|error| {
        let folder = folder.display();
        Failure::environment_error(format!("{folder}: no temporary file: {error}; set TMPDIR"))
    })
}

/// Returns the environment variables to set for the program and its children.
fn variables(
    arguments: &RunArguments,
    library: &Path,
    captures: &Captures,
) -> Vec<(&'static str, OsString)> {
    let users = env::var_os("LD_PRELOAD").filter(|value| !value.is_empty());
    let preloaded = users.into_iter().chain([library.into()]).collect::<Vec<_>>();
    let limit = arguments.limit.map(|limit| match limit {
        Size::Bytes(bytes) => bytes.to_string(),
        Size::Percent(percent) => format!("{percent}%"),
        // No other kind of size exists.
        _ => String::new(),
    });
    let number = |size: &Option<TypedSize>| size.as_ref().map(|size| size.bytes.to_string());
    let given = [
        ("GPUHEAP_RUN_LIMIT", limit),
        ("GPUHEAP_RUN_FAIL_NTH", arguments.fail_nth.map(|number| number.to_string())),
        ("GPUHEAP_RUN_FAIL_AFTER", number(&arguments.fail_after)),
        ("GPUHEAP_RUN_MAX_SIZE", number(&arguments.max_size)),
        ("GPUHEAP_NVTX", arguments.nvtx.then(|| "1".to_owned())),
        ("GPUHEAP_RUN_COPIES", arguments.copies.then(|| "1".to_owned())),
        ("GPUHEAP_RUN_PYTHON", arguments.no_python.then(|| "0".to_owned())),
        ("GPUHEAP_RUN_STACKS", arguments.no_stacks.then(|| "0".to_owned())),
    ];
    let given = given.into_iter().filter_map(|(name, value)| Some((name, value?.into())));
    let output = captures.template().into();
    let list = captures.list.path().into();
    let all = [
        ("GPUHEAP_RUN_LIBRARY", library.into()),
        ("LD_PRELOAD", preloaded.join(":".as_ref())),
        ("GPUHEAP_RUN_OUTPUT", output),
        ("GPUHEAP_RUN_LIST", list),
    ];
    // If a profiler has set NVTX's variable, the profiler's library gets the ranges.
    let nvtx = env::var_os(NVTX).is_none().then(|| (NVTX, library.into()));
    all.into_iter().chain(nvtx).chain(given).collect()
}

/// Prints the gates (`--max-peak`, `--max-leak`) that failed. Returns `true` if no gate failed.
fn check_gates(arguments: &RunArguments, summaries: &[Summary]) -> bool {
    let mut failed = Vec::new();
    let is_gated = arguments.max_peak.is_some() || arguments.max_leak.is_some();
    if is_gated && summaries.is_empty() {
        failed.push("nothing was recorded, so no gate was checked".to_owned());
    }
    for summary in summaries {
        failed.extend(summary.incomplete().filter(|_| is_gated));
        if let Some(most) = &arguments.max_peak
            && summary.peak_bytes() > most.bytes
        {
            failed.push(summary.gate("--max-peak", "peak", summary.peak_bytes(), most.bytes));
        }
        if let Some(most) = arguments.max_leak
            && summary.live_bytes() > most
        {
            failed.push(summary.gate("--max-leak", "live at exit", summary.live_bytes(), most));
        }
    }
    failed.iter().for_each(|line| output::note(line));
    failed.is_empty()
}

/// Paths of the captures of a run.
struct Captures {
    folder: PathBuf,
    /// File name without its ending.
    stem: OsString,
    /// File to which each process appends the path of its capture and a zero byte.
    list: NamedTempFile,
}

impl Captures {
    fn new(output: Option<&Path>, program: &OsString) -> Result<Captures, Failure> {
        let program = Path::new(program).file_name().unwrap_or(program);
        let output = output.unwrap_or(Path::new(program));
        let cannot = |error: String| {
            Failure::wrong_use(format!(
                "--output: {}: {error}; name a file in a folder that you can write to",
                output.display()
            ))
        };
        let name = output.file_name().ok_or_else(|| cannot("no file is named".to_owned()))?;
        let mut stem = name.as_bytes();
        for ending in [ENDING, ".%p"] {
            stem = stem.strip_suffix(ending.as_bytes()).unwrap_or(stem);
        }
        let stem = OsStr::from_bytes(stem).to_owned();
        let parent = output.parent().filter(|parent| !parent.as_os_str().is_empty());
        // Makes the folder's path absolute, because the program may change its working directory.
        let folder = parent.unwrap_or(Path::new("."));
        let folder = folder.canonicalize().map_err(|error| cannot(error.to_string()))?;
        tempfile::tempfile_in(&folder).map_err(|error| cannot(error.to_string()))?;
        // The list is in the captures' folder, because each process can write there.
        let list = shared_file(&folder, 0)?;
        Ok(Captures { folder, stem, list })
    }

    /// Returns the path of a capture. Its last `%p` stands for the process id.
    fn template(&self) -> PathBuf {
        let mut name = self.stem.clone();
        name.push(format!(".%p{ENDING}"));
        self.folder.join(name)
    }

    fn found(&self) -> Vec<PathBuf> {
        let list = fs::read(self.list.path()).unwrap_or_default();
        let paths = list.split(|byte| *byte == 0).filter(|path| !path.is_empty());
        let paths = paths.map(|path| PathBuf::from(OsStr::from_bytes(path)));
        let mut paths: Vec<_> = paths.filter(|path| self.has(path)).collect();
        paths.sort();
        paths
    }

    /// Returns `true` if the path matches the template and the file exists. A process that
    /// allocated nothing removes its file.
    fn has(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().as_bytes();
        let number = name.strip_prefix(self.stem.as_bytes());
        let number = number.and_then(|rest| rest.strip_suffix(ENDING.as_bytes()));
        path.parent() == Some(&self.folder)
            && number.is_some_and(|number| number.iter().all(|byte| b".0123456789".contains(byte)))
            && fs::symlink_metadata(path).is_ok_and(|facts| facts.is_file())
    }
}

/// Finds the recorder in `folder`. If it is not there, finds it in the first of the [`folders`].
fn library(folder: Option<&Path>) -> Result<PathBuf, Failure> {
    let mut files = folder.map(Path::to_owned).into_iter().chain(folders());
    let found = files.find_map(|folder| folder.join(LIBRARY).canonicalize().ok());
    let found = found.ok_or_else(|| {
        Failure::environment_error(format!(
            "the recorder {LIBRARY} is missing; in a clone of gpuheap, build it (cargo build \
             --release), or name its folder: export {FOLDER}=$PWD/target/release"
        ))
    })?;
    // The loader splits `LD_PRELOAD` at these characters.
    if found.to_string_lossy().contains([':', ' ']) {
        return Err(Failure::environment_error(format!(
            "{}: the loader takes no path with a space or colon; move gpuheap elsewhere",
            found.display()
        )));
    }
    Ok(found)
}

/// Parses the largest leak; 0 is valid.
fn leak(text: &str) -> Result<u64, String> {
    match Size::parse(text) {
        _ if text.trim() == "0" => Ok(0),
        Ok(Size::Bytes(bytes)) => Ok(bytes),
        Ok(_) => Err(format!("'{text}' is a share; write bytes (0) or a unit (100M, 1.5GiB)")),
        Err(error) => Err(error.to_string()),
    }
}
