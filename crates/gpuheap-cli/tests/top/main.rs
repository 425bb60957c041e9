//! Runs `gpuheap top` on recordings of machines and in a real terminal. The test `program` of this
//! file is started as a program that publishes its memory.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

#[path = "../command/mod.rs"]
mod command;
#[path = "../publisher/mod.rs"]
mod publisher;
#[path = "../../../gpuheap-doctor/tests/recorded/mod.rs"]
mod recorded;
#[path = "../schema/mod.rs"]
mod schema;
#[path = "../../../gpuheap-top/tests/tmux/mod.rs"]
mod tmux;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gpuheap::{Access, Device, Heap, PoolKind, Tracking};

use crate::publisher::{Program, gpuheap};
use crate::schema::{differences, schema_of};
use crate::tmux::Tmux;

const MIB: u64 = 1 << 20;

/// Caches 8 MiB, and keeps 1 MiB more every 100 ms, until it is killed.
#[test]
#[ignore = "the other tests start it"]
fn program() {
    let device = Device::open("emulated:8GiB").unwrap();
    let builder = Heap::builder(&device).pool(PoolKind::Binned).track(Tracking::Counts);
    let heap = builder.publish(Access::Control).build().unwrap();
    let stream = device.stream().unwrap();
    heap.allocate(8 * MIB, &stream).unwrap().free().unwrap();
    println!("ready");
    std::io::stdout().flush().unwrap();
    let mut kept = Vec::new();
    loop {
        kept.push(heap.allocate(MIB, &stream).unwrap()); // The line that grows.
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn growing_line() -> String {
    let is_it = |line: &str| line.contains("// The line that grows.");
    let number = include_str!("main.rs").lines().position(is_it).unwrap() + 1;
    format!("main.rs:{number}")
}

fn start(folder: &Path) -> Program {
    Program::start("program", folder)
}

/// Sends a signal by its name.
fn signal(pid: &str, name: &str) {
    assert!(Command::new("kill").args(["-s", name, pid]).status().unwrap().success());
}

/// Writes the file of a recorded machine with processes of several users.
fn machine(folder: &Path) -> PathBuf {
    recorded::write("several_users", folder)
}

/// Starts `gpuheap top` in the shell. When it ends, the shell prints `code=` and its exit code.
fn open(tmux: &Tmux, arguments: &str) {
    let (program, folder) = (env!("CARGO_BIN_EXE_gpuheap"), tmux.folder().display());
    let ids = format!("echo $$ > {folder}/pid");
    let command = format!("exec {program} top {arguments}");
    tmux.run(&format!("clear; XDG_RUNTIME_DIR={folder} sh -c '{ids}; {command}'; echo code=$?"));
}

/// In the shell, starts `gpuheap top` with a recorded machine, and waits until the screen is shown.
fn open_recorded(tmux: &Tmux) {
    let file = machine(tmux.folder());
    open(tmux, &format!("--machine {}", file.display()));
    tmux.wait_for("MEMORY▼");
}

/// Returns the pid of the `gpuheap top` that [`open`] started.
fn pid_of_screen(tmux: &Tmux) -> String {
    let pid = std::fs::read_to_string(tmux.folder().join("pid")).unwrap();
    pid.trim().to_owned()
}

#[test]
fn missing_terminal_is_wrong_use() {
    let folder = tempfile::tempdir().unwrap();
    let ran = gpuheap(folder.path(), &["top"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    insta::assert_snapshot!(ran.stderr);
    let ran = gpuheap(folder.path(), &["top", "--after", "2s"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (2, "error: --after needs --once or --json\n"));
    let ran = gpuheap(folder.path(), &["top", "--once", "--interval", "1ms"]);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
}

#[test]
fn frame_is_text_and_json() {
    let folder = tempfile::tempdir().unwrap();
    let file = machine(folder.path());
    let file = file.to_str().unwrap();
    let ran = gpuheap(folder.path(), &["top", "--once", "--machine", file]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    insta::assert_snapshot!(ran.stdout);
    let ran = gpuheap(folder.path(), &["top", "--json", "--machine", file]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert_eq!(differences(&schema_of("top"), &ran.json(), "$"), [""; 0]);
}

#[test]
fn frame_names_growing_line() {
    let folder = tempfile::tempdir().unwrap();
    let program = start(folder.path());
    let ran = gpuheap(folder.path(), &["top", "--json", "--after", "5s"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let json = ran.json();
    assert_eq!(differences(&schema_of("top"), &json, "$"), [""; 0]);
    let first = &json["lines"][0];
    assert_eq!(first["pid"], program.0.id());
    assert!(first["line"].as_str().unwrap().ends_with(&growing_line()), "{json}");
    assert!(first["grown_bytes"].as_u64().unwrap() > 0, "{json}");
}

#[test]
fn keys_order_and_filter_processes() {
    let Some(tmux) = Tmux::start() else { return };
    let before = tmux.state();
    open_recorded(&tmux);
    tmux.press("s");
    tmux.wait_for("GROWN▼");
    tmux.press("/");
    tmux.run("julia");
    let text = tmux.wait("the filter", |text| text.contains("[julia]") && !text.contains("Xorg"));
    assert!(text.contains("4100"), "{text}");
    tmux.press("h");
    tmux.wait_for("Keys");
    tmux.press("Escape");
    tmux.wait("no dialog", |text| !text.contains("Keys"));
    tmux.press("q");
    tmux.wait_for("code=0");
    assert_eq!(tmux.state(), before);
}

#[test]
fn growing_line_is_on_screen() {
    let Some(tmux) = Tmux::start() else { return };
    let program = start(tmux.folder());
    open(&tmux, "");
    let line = growing_line();
    let text = tmux
        .wait("growth", |text| text.lines().any(|row| row.contains('+') && row.contains(&line)));
    assert!(text.contains(&format!("pid {}", program.0.id())), "{text}");
    tmux.press("C-c");
    tmux.wait_for("code=0");
}

#[test]
fn free_asks_and_flushes() {
    let Some(tmux) = Tmux::start() else { return };
    let _program = start(tmux.folder());
    open(&tmux, "");
    tmux.wait_for("main.rs:");
    tmux.press("f");
    let text = tmux.wait_for("y yes   n no");
    assert!(text.contains("Flush pid"), "{text}");
    tmux.press("n");
    tmux.wait("no question", |text| !text.contains("y yes"));
    tmux.press("f");
    tmux.wait_for("y yes   n no");
    tmux.press("y");
    tmux.wait_for("gave back");
    tmux.press("q");
    tmux.press("q");
    tmux.wait_for("code=0");
}

#[test]
fn stopped_program_leaves_screen_usable() {
    let Some(tmux) = Tmux::start() else { return };
    let program = start(tmux.folder());
    open(&tmux, "");
    tmux.wait_for("main.rs:");
    let pid = program.0.id().to_string();
    signal(&pid, "STOP");
    tmux.wait_for("no answer within 2 s; the program may be stopped");
    tmux.press("s");
    tmux.wait_for("GROWN▼");
    signal(&pid, "CONT");
    tmux.wait_for("main.rs:");
    tmux.press("q");
    tmux.wait_for("code=0");
}

#[test]
fn signals_leave_terminal_as_found() {
    for (name, code) in [("TERM", 143), ("INT", 130), ("HUP", 129)] {
        let Some(tmux) = Tmux::start() else { return };
        let before = tmux.state();
        open_recorded(&tmux);
        assert_ne!(tmux.state(), before);
        signal(&pid_of_screen(&tmux), name);
        tmux.wait_for(&format!("code={code}"));
        assert_eq!(tmux.state(), before, "{name}");
    }
}

#[test]
fn closed_terminal_ends_screen() {
    let Some(tmux) = Tmux::start() else { return };
    open_recorded(&tmux);
    let pid = pid_of_screen(&tmux);
    tmux.close();
    let runs = || {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        state.is_ok_and(|state| !state.contains(") Z "))
    };
    let begin = std::time::Instant::now();
    while runs() {
        assert!(begin.elapsed() < Duration::from_secs(60), "pid {pid} still runs");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn suspended_screen_comes_back() {
    let Some(tmux) = Tmux::start() else { return };
    let before = tmux.state();
    let (program, file) = (env!("CARGO_BIN_EXE_gpuheap"), machine(tmux.folder()));
    tmux.run(&format!("clear; {program} top --machine {}", file.display()));
    tmux.wait_for("MEMORY▼");
    tmux.press("C-z");
    tmux.wait_for("Stopped");
    assert_eq!(tmux.state(), before);
    tmux.run("fg");
    tmux.wait_for("MEMORY▼");
    tmux.press("q");
    // Until the screen has ended, it reads all keys. So the test waits for the shell's prompt.
    tmux.wait("a prompt", |text| text.trim_end().ends_with('$'));
    tmux.run("echo code=$?");
    tmux.wait_for("code=0");
    assert_eq!(tmux.state(), before);
}
