//! Runs the command as a process. Tests its memory, its pipes, and devices that do not exist.

use std::process::Stdio;

use crate::support::{Ran, command, ran, replay, traces, without_times};

/// Maximum host memory of a replay on an emulated device of 141 GiB, in bytes.
const HOST_MEMORY: u64 = 300 << 20;

#[test]
#[cfg(target_os = "linux")]
#[expect(clippy::zombie_processes, reason = "wait4 waits, and says what the process took")]
fn emulated_device_costs_little_host_memory() {
    for trace in ["llm_serve.csv.gz", "gpt_train.csv.gz"] {
        let arguments = ["replay", "--json", trace];
        let child = command(&traces(), &arguments).stdout(Stdio::null()).spawn().unwrap();
        let mut status = 0;
        // SAFETY: all fields are integers, for which zero is valid.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: only this call waits for the child process, and both pointers are valid for the
        // call.
        let ended = unsafe { libc::wait4(child.id() as i32, &mut status, 0, &mut usage) };
        assert_eq!((ended, status), (child.id() as i32, 0));
        let peak = usage.ru_maxrss as u64 * 1024;
        assert!(peak < HOST_MEMORY, "{trace} took {} MiB", peak >> 20);
        assert!(peak > 10 << 20, "{peak} bytes cannot be what was used");
    }
}

#[test]
fn closed_stdout_is_no_failure() {
    let mut child = command(&traces(), &["replay", "two_streams.csv.gz"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
}

#[test]
#[cfg(target_os = "linux")]
fn full_disk_is_environment_error() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output =
        command(&traces(), &["replay", "--json", "two_streams.csv.gz"]).stdout(full).output();
    let ran = Ran::from(output.unwrap());
    assert_eq!(ran.code, 3);
    assert!(ran.stderr.starts_with("error: the output cannot be written: "), "{}", ran.stderr);
}

#[test]
fn missing_device_is_environment_error() {
    // The result is the same with and without a driver, because no machine has 10,000 devices.
    let ran = replay(&["--device", "cuda:9999", "two_streams.csv.gz"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (3, ""));
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
}

#[test]
fn version_is_printed() {
    let ran = ran(&mut command(&traces(), &["--version"]));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert_eq!(ran.stdout, format!("gpuheap {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn environment_does_not_change_output() {
    let arguments = ["replay", "--pool", "split", "--pool", "stitched", "two_streams.csv.gz"];
    let plain = ran(&mut command(&traces(), &arguments));
    let mut changed = command(&traces(), &arguments);
    changed.envs([
        ("GPUHEAP_DEVICE", "cuda:99"),
        ("GPUHEAP_POOL", "nonsense"),
        ("GPUHEAP_MEMORY_LIMIT", "1MiB"),
        ("GPUHEAP_SLACK", "1000%"),
        ("GPUHEAP_NONSENSE", "1"),
    ]);
    let changed = Ran::from(changed.output().unwrap());
    assert_eq!((changed.code, changed.stderr.as_str()), (0, ""));
    assert_eq!(without_times(&changed.stdout), without_times(&plain.stdout));
}

#[test]
fn output_has_no_colour() {
    for arguments in [
        &["replay", "--help"][..],
        &["replay", "--pool", "x", "y"],
        &["replay", "two_streams.csv.gz"],
    ] {
        let output =
            command(&traces(), arguments).env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1").output();
        let ran = Ran::from(output.unwrap());
        assert!(!(ran.stdout + &ran.stderr).contains('\u{1b}'), "{arguments:?}");
    }
}
