//! Writes a message if a program uses CUDA without a driver. The message lists the searched places,
//! and the command that runs the program on the emulated driver. A process writes at most one
//! message.

use std::ffi::CStr;
#[cfg(target_arch = "x86_64")]
use std::ffi::c_void;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use gpuheap_catch::{loader, messages};
use gpuheap_driver::{CUresult, EMULATED_DEVICES, OpenError, SEARCH_PATHS};
use gpuheap_text::shell_word;

#[cfg(target_arch = "x86_64")]
use crate::search_path;
use crate::{counts, real};

/// Name by which programs load the driver.
const DRIVER: &CStr = c"libcuda.so.1";

/// Libraries of the emulated runtime and driver, as cargo names them.
const EMULATED: [&str; 2] = ["libgpuheap_emu_cudart.so", "libcuda_emulated.so"];

/// Longest command line that a message repeats, in bytes.
const LONGEST_COMMAND: usize = 200;

/// `true` once a message was written.
static SAID: AtomicBool = AtomicBool::new(false);

/// Id of the process that tried to load the driver by name; 0 if no process did. A forked child
/// inherits its parent's id here.
static ASKED: AtomicU32 = AtomicU32::new(0);

/// Returns `true` if a library's file name is one of the driver's names.
#[cfg(target_arch = "x86_64")]
pub(crate) fn is_driver(file: &CStr) -> bool {
    let name = file.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name == DRIVER.to_bytes() || name == b"libcuda.so"
}

/// Notes that the code at `caller` loads the driver. Runs before the loader searches.
#[cfg(target_arch = "x86_64")]
pub(crate) fn note_load(file: &CStr, caller: *const c_void) {
    if loader::is_loaded(DRIVER) {
        return;
    }
    counts::note_cuda();
    ASKED.store(std::process::id(), Ordering::Relaxed);
    // Writes the message on a missing driver now only if the program cannot find a driver in other
    // folders or under another name. Otherwise, `report_at_exit` writes it.
    if file == DRIVER
        && found_elsewhere().is_none()
        && !search_path::brings_folders(caller)
        && let Err(reason) = loader::load(DRIVER)
    {
        say_absent(&reason);
    }
}

/// Reports at the exit of a process that it tried to load a driver and found none.
pub(crate) fn report_at_exit() {
    if ASKED.load(Ordering::Relaxed) == std::process::id() && !loader::is_loaded(DRIVER) {
        say_absent("libcuda.so.1 was not found");
    }
}

/// Writes a message if a runtime call failed with `code` and made no context.
pub(crate) fn report_no_context(code: CUresult) {
    if code.is_success() || SAID.load(Ordering::Relaxed) {
        return;
    }
    if !loader::is_loaded(DRIVER) {
        counts::note_cuda();
        if let Err(reason) = loader::load(DRIVER) {
            say_absent(&reason);
        }
    } else if first() {
        let path = driver().display().to_string();
        // Only the runtime uses code 35.
        let reason = match code.0 {
            35 => "cudaErrorInsufficientDriver (35): the driver is older than the runtime needs",
            _ => &format!("{code:?}"),
        };
        messages::write(&format!(
            "the CUDA runtime does not start over the driver at {path}: {reason}"
        ));
    }
}

/// Writes a message if `cuInit` of the driver failed with `code`.
pub(crate) fn report_failed_start(code: CUresult) {
    if !loader::is_loaded(DRIVER) {
        return report_no_context(code);
    }
    // In a forked child and at the end of the process, these codes are expected.
    let expected = [CUresult::ERROR_NOT_INITIALIZED, CUresult::ERROR_DEINITIALIZED];
    if expected.contains(&code) || !first() {
        return;
    }
    let mut text = OpenError::Initialise { path: driver(), function: "cuInit", code }.to_string();
    text.push_str("; gpuheap doctor looks for the cause");
    if !is_emulated() {
        text.push_str(&on_the_emulated_driver());
    }
    messages::write(&text);
}

fn say_absent(reason: &str) {
    if !first() {
        return;
    }
    let folders = match std::env::var("LD_LIBRARY_PATH") {
        Ok(folders) if !folders.is_empty() => folders,
        _ => "not set".to_owned(),
    };
    let mut text = format!(
        "this program uses CUDA, and the loader finds no driver: {reason}\n  \
         searched for libcuda.so.1 in LD_LIBRARY_PATH ({folders}), the loader's cache (ldconfig -p) \
         and"
    );
    for (at, path) in SEARCH_PATHS.iter().skip(1).enumerate() {
        let separator = if at == 0 { " " } else { ", " };
        let folder = Path::new(path).parent().unwrap_or(Path::new(path));
        let _ = write!(text, "{separator}{}", folder.display());
    }
    match found_elsewhere() {
        Some(path) => {
            let folder = path.parent().unwrap_or(path).display();
            let _ = write!(
                text,
                "\n  {} is there; for the loader to find it, type\n    \
                 export LD_LIBRARY_PATH={folder}",
                path.display()
            );
        }
        None => {
            text.push_str("; gpuheap doctor looks for the cause");
            text.push_str(&on_the_emulated_driver());
        }
    }
    messages::write(&text);
}

/// Returns `true` only at the first call in the process, so that only one message is written.
fn first() -> bool {
    !SAID.swap(true, Ordering::Relaxed)
}

/// Returns the first driver file in the usual places that the loader does not search.
fn found_elsewhere() -> Option<&'static Path> {
    SEARCH_PATHS.iter().skip(1).map(Path::new).find(|path| path.is_file())
}

/// Returns lines with the command that runs the program without a GPU.
fn on_the_emulated_driver() -> String {
    let nvcc = match real::has_runtime() {
        true => "",
        // By default, nvcc links the runtime statically. A static runtime works only with NVIDIA's
        // driver.
        false => " (a program of nvcc: build it with nvcc -cudart shared first)",
    };
    let mut text =
        format!("\n  to run it without a GPU, on gpuheap's emulated driver{nvcc}, type\n");
    let drop_in = loader::file_of(real::CATCHER.own_address("cuInit").unwrap_or_default());
    let drop_in = drop_in.canonicalize().unwrap_or(drop_in);
    let mut folder = drop_in.parent().unwrap_or(Path::new("")).to_owned();
    if !EMULATED.iter().all(|name| folder.join(name).is_file()) {
        let is_debug = folder.ends_with("target/debug");
        if !is_debug && !folder.ends_with("target/release") {
            folder = PathBuf::from("target/release");
        }
        let profile = if is_debug { "" } else { " --release" };
        let _ = writeln!(
            text,
            "    cargo build{profile} -p gpuheap-emu-cudart -p gpuheap-emu-libcuda   # in gpuheap's \
             sources"
        );
    }
    let _ = write!(text, "    LD_PRELOAD={}", shell_word(&drop_in.to_string_lossy()));
    for name in EMULATED {
        let _ = write!(text, ":{}", shell_word(&folder.join(name).to_string_lossy()));
    }
    let _ = write!(text, " GPUHEAP_EMULATED_KERNELS=no-op {}", command());
    text
}

/// Returns the command line of the process, quoted for a shell.
fn command() -> String {
    let read = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let words = read.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    let words: Vec<_> = words.map(|word| shell_word(&String::from_utf8_lossy(word))).collect();
    let line = words.join(" ");
    match words.first() {
        Some(_) if line.len() <= LONGEST_COMMAND => line,
        Some(program) => format!("{program} ..."),
        None => "your-program".to_owned(),
    }
}

/// Returns the file of the loaded driver.
fn driver() -> PathBuf {
    match loader::in_loaded(DRIVER, c"cuInit") {
        Some(address) => loader::file_of(address),
        None => PathBuf::from("libcuda.so.1"),
    }
}

/// Returns `true` if the loaded driver is the emulated driver.
fn is_emulated() -> bool {
    let symbol = CStr::from_bytes_with_nul(EMULATED_DEVICES.as_bytes());
    symbol.is_ok_and(|symbol| loader::in_loaded(DRIVER, symbol).is_some())
}
