//! Accounts of recorded machines.

use gpuheap_doctor::status::{self, Account, Place};
use gpuheap_doctor::{Machine, Recording};

use crate::support::named;

fn account(recording: Recording) -> Account {
    status::of(&Machine::read(recording)).remove(0)
}

fn shown(name: &str, width: usize) -> String {
    let machine = Machine::read(named(name));
    let driver = machine.nvml.as_ref().unwrap().driver.clone();
    let text = status::render(&status::of(&machine), &driver, width);
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
    // Xorg has no CUDA context. Four processes have one of at most 527 MiB.
    assert_eq!(account.contexts_bytes_estimated, (4 * 527) << 20);
}

#[test]
fn reserved_memory_is_not_counted_twice() {
    let nvml =
        "{\"devices\": [{\"total\": 1000, \"used\": 300, \"free\": 700, \"reserved\": 100}]}";
    let with_it = account(Recording::default().with("nvml", nvml));
    assert_eq!((with_it.used_bytes, with_it.reserved_bytes), (200, Some(100)));
}

#[test]
fn process_that_cannot_be_seen_is_not_called_ended() {
    let hidden = "22 27 0:20 / /proc rw - proc proc rw,hidepid=2\n";
    let account = account(named("several_users").with("/proc/self/mountinfo", hidden));
    assert_eq!(account.processes[2].place, Place::Hidden);
}

#[test]
fn several_users_at_80_columns() {
    insta::assert_snapshot!(shown("several_users", 80));
}

#[test]
fn several_users_at_200_columns() {
    insta::assert_snapshot!(shown("several_users", 200));
}

#[test]
fn wsl2_has_the_figures_of_windows_by_their_names() {
    let mut machine = Machine::read(named("wsl2_windows"));
    assert_eq!(machine.windows, None);
    machine.ask_windows();
    let windows = machine.windows.unwrap();
    let text = status::render_windows(&windows, 80);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn wsl2_gives_no_figure_by_process() {
    insta::assert_snapshot!(shown("wsl2", 80));
}
