//! Tests the accounts of recorded machines.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gpuheap_doctor::machine::Nvml;
use gpuheap_doctor::status::{self, Account, Place};
use gpuheap_doctor::{Machine, Recording, Skipped, Source, Why, diagnose};

use crate::support::{machines, named, recording};

fn account(recording: Recording) -> Account {
    status::accounts(&Machine::read(recording)).remove(0)
}

fn rendered(name: &str, width: usize) -> String {
    let machine = Machine::read(named(name));
    let driver = machine.nvml.as_ref().unwrap().driver.clone();
    let text = status::render(&status::accounts(&machine), &driver, width);
    assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
    text
}

#[test]
fn idle_device_adds_up() {
    let account = account(named("h200_idle"));
    assert_eq!((account.used_bytes, account.unaccounted_bytes), (0, 0));
    assert_eq!(account.total_bytes, account.free_bytes + account.reserved_bytes.unwrap());
}

#[test]
fn rows_add_up_to_used() {
    let account = account(named("several_users"));
    let listed: u64 = account.processes.iter().map(|row| row.bytes.unwrap()).sum();
    assert_eq!(listed as i64 + account.unaccounted_bytes, account.used_bytes as i64);
    let places: Vec<Place> = account.processes.iter().map(|row| row.place).collect();
    let expected = [Place::Own, Place::OtherUser, Place::Ended, Place::Container, Place::OtherUser];
    assert_eq!(places, expected);
    assert_eq!(account.processes[3].container.as_deref(), Some("0123456789ab"));
    // Xorg has no CUDA context. Four processes each have a context of at most 527 MiB.
    assert_eq!(account.contexts_bytes_estimated, (4 * 527) << 20);
}

#[test]
fn each_device_lists_its_processes() {
    let pids = |name| {
        let accounts = status::accounts(&Machine::read(named(name)));
        let of = |account: &Account| {
            account.processes.iter().map(|row| (row.pid, row.place)).collect::<Vec<_>>()
        };
        accounts.iter().map(of).collect::<Vec<_>>()
    };
    // The driver lists a process under its real device, even if the process reorders the devices.
    let reordered = pids("two_h200_reordered");
    assert_eq!(reordered, [[(1683, Place::Own)], [(1663, Place::Own)]]);
    assert_eq!(pids("two_h200_orphan"), [vec![], vec![(1779, Place::Ended)]]);
}

#[test]
fn reserved_memory_is_not_counted_twice() {
    let nvml =
        "{\"devices\": [{\"total\": 1000, \"used\": 300, \"free\": 700, \"reserved\": 100}]}";
    let with_it = account(Recording::default().with("nvml", nvml));
    assert_eq!((with_it.used_bytes, with_it.reserved_bytes), (200, Some(100)));
}

#[test]
fn invisible_process_is_hidden_not_ended() {
    let hidden = "22 27 0:20 / /proc rw - proc proc rw,hidepid=2\n";
    let account = account(named("several_users").with("/proc/self/mountinfo", hidden));
    assert_eq!(account.processes[2].place, Place::Hidden);
}

#[test]
fn several_users_at_80_columns() {
    insta::assert_snapshot!(rendered("several_users", 80));
}

#[test]
fn several_users_at_200_columns() {
    insta::assert_snapshot!(rendered("several_users", 200));
}

#[test]
fn wsl2_status_shows_figures_of_windows() {
    let mut machine = Machine::read(named("wsl2_windows"));
    assert_eq!(machine.windows, None);
    machine.read_windows();
    let windows = machine.windows.unwrap();
    let text = status::render_windows(&windows, 80);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn published_programs_follow_the_devices() {
    let text = |name: &str| {
        let machine = Machine::read(recording(&machines().join("../rules/p25").join(name)));
        let text = status::render_programs(&machine.programs, 80);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        text
    };
    insta::assert_snapshot!(text("fires.machine") + &text("quiet.machine"));
    assert_eq!(status::render_programs(&[], 80), "");
}

#[test]
fn long_paths_keep_file_and_function() {
    let source = recording(&machines().join("../rules/p25/fires.machine"));
    let folder = "/home/someone/projects/segmentation/experiments/2026-11/src/";
    let programs = source.text("programs").unwrap();
    let programs = programs.replace("train.py:41", &format!("{folder}train.py:41"));
    let programs = programs.replace("model.py:7", &format!("{folder}model.py:7"));
    let programs = programs.replace("__init__", "TransformerDecoderLayer.forward_with_cached_keys");
    let machine = Machine::read(source.with("programs", &programs));
    let text = status::render_programs(&machine.programs, 80);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn hostile_program_steers_no_terminal() {
    let quiet = recording(&machines().join("../rules/p25/fires.machine"));
    let hostile = quiet.text("programs").unwrap().replace("train.py", "\\u001b[2Jtrain.py");
    let hostile = hostile.replace("python3 ", "\\u001b]0;x\\u0007 ").replace("cuda:0", "\\n\\n");
    let machine = Machine::read(quiet.clone().with("programs", &hostile));
    let text = status::render_programs(&machine.programs, 80);
    assert!(!text.contains(['\u{1b}', '\u{7}']) && text.lines().count() == 5, "{text:?}");
    let failed = r#"{"pid": 1, "uid": 1, "status": null, "leaks": {"is_tracked": false,
        "sites": [], "left_out": 0}, "failure": "\u001b[2Jbusy"}"#;
    let machine = Machine::read(quiet.with("programs", &failed.replace('\n', "")));
    let text = status::render_programs(&machine.programs, 80);
    assert!(text.contains("    [2Jbusy\n"), "{text:?}");
}

#[test]
fn wsl2_gives_no_figure_by_process() {
    insta::assert_snapshot!(rendered("wsl2", 80));
}

/// A machine on which a process starts after the first read of the driver's lists.
#[derive(Clone)]
struct Starting {
    recording: Recording,
    looks: Arc<AtomicUsize>,
}

impl Source for Starting {
    fn nvml(&self) -> Result<Nvml, Skipped> {
        let mut nvml = self.recording.nvml()?;
        if self.looks.fetch_add(1, Ordering::Relaxed) == 0 {
            nvml.devices.iter_mut().for_each(|gpu| gpu.processes.clear());
        }
        Ok(nvml)
    }

    fn read(&self, path: &str) -> Result<Vec<u8>, Skipped> {
        self.recording.read(path)
    }

    fn list(&self, path: &str) -> Result<Vec<String>, Skipped> {
        self.recording.list(path)
    }

    fn link(&self, path: &str) -> Result<String, Skipped> {
        self.recording.link(path)
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.recording.variable(name)
    }

    fn kernel_log(&self) -> Result<String, Skipped> {
        self.recording.kernel_log()
    }

    fn windows(&self) -> Result<String, Skipped> {
        self.recording.windows()
    }

    fn cuda(&self, command: &[String]) -> Result<String, Skipped> {
        self.recording.cuda(command)
    }

    fn run(&self, command: &[&str], limit: Duration) -> Result<String, Skipped> {
        self.recording.run(command, limit)
    }

    fn is_same_file(&self, one: (u32, u32), other: (u32, u32)) -> Result<bool, Skipped> {
        self.recording.is_same_file(one, other)
    }

    fn pause(&self, _time: Duration) {}
}

#[test]
fn late_listed_process_is_not_ended() {
    // The process belongs to another user, so its open devices cannot be read.
    let recording = named("h200_training").without("/proc/4000/fd", Why::Denied);
    let recording = recording.without("/proc/4000/fd/7", Why::Missing);
    let recording = recording.without("/proc/4000/fd/9", Why::Missing);
    let mut machine = Machine::read(Starting { recording, looks: Default::default() });
    assert!(machine.process(4000).is_none());
    machine.examine();
    assert!(machine.process(4000).is_some());
    let report = diagnose(&machine);
    assert!(report.findings.iter().all(|finding| finding.rule != "P01"), "{report:#?}");
}

#[test]
fn refresh_adds_listed_process() {
    let recording = named("h200_training");
    let mut machine = Machine::read_devices(Starting { recording, looks: Default::default() });
    let bytes = |machine: &Machine| status::accounts(machine)[0].used_bytes;
    let before = bytes(&machine);
    assert_eq!(status::accounts(&machine)[0].processes, []);
    machine.refresh();
    let row = &status::accounts(&machine)[0].processes[0];
    assert_eq!((row.pid, row.place), (4000, Place::Own));
    assert_eq!(bytes(&machine), before);
}
