//! Tests with processes that share an account. An account is a file in which emulated drivers
//! record their memory. A process stays listed until the process and its forked children have
//! ended.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use gpuheap_doctor::machine::Nvml;
use gpuheap_doctor::{Here, Machine, Skipped, Source, diagnose};
use gpuheap_driver::LibCuda;
use tempfile::TempDir;

use crate::{driver, library};

/// Starts a process that allocates 1 GiB on device 1, forks and exits. Calls `body` while the child
/// runs, then ends the child.
fn with_a_dead_parent(body: impl FnOnce(&TempDir, u32, u32, &Path)) {
    let folder = library::folder(&[&library::NVML, &library::LIBCUDA]);
    let account = folder.path().join("account");
    let variables = variables(&account);
    let mut parent = library::ignored_test("account::takes_and_forks", &folder, &variables)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let sleep = parent.stdin.take();
    // Reads all output of the parent, because other lines surround the child's pid.
    let lines = BufReader::new(parent.stdout.take().unwrap()).lines().map_while(Result::ok);
    let child = lines.filter_map(|line| line.strip_prefix("child ")?.parse().ok()).last();
    assert!(parent.wait().unwrap().success());
    body(&folder, parent.id(), child.unwrap(), &account);
    drop(sleep);

    // The child now exits, and its exit releases its lock on the account. Waits until its memory is
    // no longer listed.
    let start = Instant::now();
    while !listed(&folder, &account).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60), "the memory does not come back");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn variables(account: &Path) -> [(&'static str, &str); 2] {
    [
        ("GPUHEAP_EMULATED_DEVICE", "t4,4GiB"),
        ("GPUHEAP_EMULATED_ACCOUNT", account.to_str().unwrap()),
    ]
}

/// Returns the processes that another process sees on device 1, one per line.
fn listed(folder: &TempDir, account: &Path) -> String {
    let text = library::run_ignored_test("account::lists", folder, &variables(account));
    let lines = text.lines().filter_map(|line| line.strip_prefix("listed "));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn dead_parents_memory_outlives_it() {
    with_a_dead_parent(|folder, parent, _, account| {
        assert!(!Path::new(&format!("/proc/{parent}")).exists());
        assert_eq!(listed(folder, account), format!("{parent} 1073741824 of 1073741824 used"));
    });
}

/// The doctor finds the child by its open device file. In this test, the account file stands for
/// `/dev/nvidia1`.
#[test]
fn doctor_finds_dead_parent() {
    with_a_dead_parent(|folder, parent, child, account| {
        let mut variables = variables(account).to_vec();
        let (parent, child) = (parent.to_string(), child.to_string());
        variables.extend([("TEST_PARENT", parent.as_str()), ("TEST_CHILD", child.as_str())]);
        library::run_ignored_test("account::is_diagnosed", folder, &variables);
    });
}

#[test]
#[ignore = "runs in a process of its own"]
fn takes_and_forks() {
    // SAFETY: the library is the emulated driver under test.
    let driver = unsafe { LibCuda::open_at("libcuda.so.1".as_ref()) }.unwrap();
    driver::take(&driver, 1 << 30);
    // SAFETY: the child calls only functions that are async-signal-safe.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut byte = 0_u8;
        // SAFETY: `byte` is valid for the write by `read`. The child closes its stdout, so that the
        // test reaches the end of the output. It then waits until the test closes its stdin.
        unsafe {
            libc::close(1);
            libc::read(0, (&raw mut byte).cast(), 1);
            libc::_exit(0);
        }
    }
    println!("\nchild {child}");
}

#[test]
#[ignore = "runs in a process of its own"]
fn lists() {
    let nvml = nvml_wrapper::Nvml::init().unwrap();
    let device = nvml.device_by_index(1).unwrap();
    let used = device.memory_info().unwrap().used;
    for process in device.running_compute_processes().unwrap() {
        let nvml_wrapper::enums::device::UsedGpuMemory::Used(bytes) = process.used_gpu_memory
        else {
            panic!("{process:?}")
        };
        println!("\nlisted {} {bytes} of {used} used", process.pid);
    }
}

#[test]
#[ignore = "runs in a process of its own"]
fn is_diagnosed() {
    let variable = |name| std::env::var(name).unwrap();
    let mut machine = Machine::read(AccountAsDevice(variable("GPUHEAP_EMULATED_ACCOUNT")));
    machine.examine();
    let report = diagnose(&machine);
    let found = report.findings.iter().find(|finding| finding.rule == "P01").unwrap();
    assert!(found.fact.contains(&variable("TEST_PARENT")), "{}", found.fact);
    assert_eq!(found.pids, [variable("TEST_CHILD").parse::<u32>().unwrap()], "{}", found.cause);
    assert_eq!(found.bytes, 1 << 30);
}

/// Facts of this machine, except that the account (a file that emulated drivers keep open) appears
/// as `/dev/nvidia1`.
struct AccountAsDevice(String);

impl Source for AccountAsDevice {
    fn read(&self, path: &str) -> Result<Vec<u8>, Skipped> {
        Here.read(path)
    }

    fn list(&self, path: &str) -> Result<Vec<String>, Skipped> {
        let mut names = Here.list(path)?;
        if path == "/dev" {
            names.push("nvidia1".to_owned());
        }
        Ok(names)
    }

    fn link(&self, path: &str) -> Result<String, Skipped> {
        let target = Here.link(path)?;
        Ok(if target == self.0 { "/dev/nvidia1".to_owned() } else { target })
    }

    fn variable(&self, name: &str) -> Option<String> {
        Here.variable(name)
    }

    fn nvml(&self) -> Result<Nvml, Skipped> {
        Here.nvml()
    }

    fn kernel_log(&self) -> Result<String, Skipped> {
        Here.kernel_log()
    }

    fn windows(&self) -> Result<String, Skipped> {
        Here.windows()
    }

    fn cuda(&self, command: &[String]) -> Result<String, Skipped> {
        Here.cuda(command)
    }

    fn run(&self, command: &[&str], limit: Duration) -> Result<String, Skipped> {
        Here.run(command, limit)
    }

    fn is_same_file(&self, one: (u32, u32), other: (u32, u32)) -> Result<bool, Skipped> {
        Here.is_same_file(one, other)
    }

    fn pause(&self, time: Duration) {
        Here.pause(time);
    }
}
