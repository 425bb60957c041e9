//! Tests of heaps that publish their figures to another process. The publishing process is an
//! ignored test of this file. Another test starts it.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use gpuheap::{Access, Device, Heap, PoolKind, Tracking};
use gpuheap_publish::{
    Answer, Detail, Published, Question, RefusalKind, Socket, ask, sockets_in, survey,
};

const MIB: u64 = 1 << 20;

/// Holds 3 MiB, caches 5 MiB in its thread, and waits. Then prints its limit, closes, and waits.
#[test]
#[ignore = "the other tests start it"]
fn program() {
    let device = Device::open("emulated:1GiB").unwrap();
    let builder = Heap::builder(&device).pool(PoolKind::Binned).hard_limit(64 * MIB);
    let builder = builder.track(Tracking::Counts);
    // Without the variable, the builder publishes the heap.
    let builder = match std::env::var_os("GPUHEAP_PUBLISH") {
        Some(_) => builder,
        None => builder.publish(Access::Read),
    };
    let heap = builder.build().unwrap();
    let other = Heap::builder(&device).build().unwrap();
    let stream = device.stream().unwrap();
    let live = heap.allocate(3 * MIB, &stream).unwrap();
    heap.allocate(5 * MIB, &stream).unwrap().free().unwrap();
    let say = |text: &str| {
        println!("{text}");
        std::io::stdout().flush().unwrap();
    };
    let wait = || assert_eq!(std::io::stdin().read(&mut [0]).unwrap(), 1);
    say("ready");
    wait();
    say(&format!("limit {:?}", heap.limits().hard));
    drop((live, other));
    // No question keeps the heap alive.
    heap.close();
    say("closed");
    wait();
}

/// Holds 2 MiB in a scope, and 1 MiB that the scope's end does not free. Then allocates 5 MiB.
#[test]
#[ignore = "another test starts it"]
fn scoped_program() {
    let device = Device::open("emulated:1GiB").unwrap();
    let heap = device.heap().unwrap();
    let say = |text: &str| {
        println!("{text}");
        std::io::stdout().flush().unwrap();
        assert_eq!(std::io::stdin().read(&mut [0]).unwrap(), 1);
    };
    let (kept, _) = heap.scope(|scope| {
        let target = scope.target().unwrap();
        let (_ends, kept) = (target.zeroed::<u8, _>(2 << 20), target.zeroed::<u8, _>(1 << 20));
        let kept = scope.keep(kept.unwrap());
        say("ready");
        kept
    });
    let stream = device.stream().unwrap();
    let live = heap.allocate(5 * MIB, &stream).unwrap();
    say("allocated");
    drop((kept, live));
}

struct Program {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Program {
    fn start(folder: &Path, publish: Option<&str>) -> Program {
        Program::start_test("program", folder, publish)
    }

    fn start_test(test: &str, folder: &Path, publish: Option<&str>) -> Program {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--ignored", "--nocapture"]).current_dir(folder);
        command.env("XDG_RUNTIME_DIR", folder).env_remove("GPUHEAP_PUBLISH");
        command.envs(publish.map(|publish| ("GPUHEAP_PUBLISH", publish)));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut program = Program { child, output };
        program.line("ready");
        program
    }

    fn go_on(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    }

    /// Returns the next line that begins with `start`.
    fn line(&mut self, start: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the program ended");
            if line.starts_with(start) {
                return line.trim_end().to_owned();
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn sockets(base: &Path) -> Vec<Socket> {
    // SAFETY: the call only returns a number.
    sockets_in(&base.join("gpuheap"), unsafe { libc::geteuid() }).unwrap()
}

fn only(base: &Path) -> Published {
    let mut found = survey(&sockets(base), Detail::All);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[test]
fn published_heap_shows_bytes_and_lines() {
    let base = tempfile::tempdir().unwrap();
    let mut program = Program::start(base.path(), None);
    let found = only(base.path());
    assert_eq!(found.pid, Some(program.child.id()));
    let status = found.status.unwrap();
    // The other heap is not published.
    let [heap] = status.heaps.as_slice() else { panic!("{status:?}") };
    assert_eq!((heap.device.as_str(), heap.pool.as_str()), ("emulated:1GiB", "binned"));
    assert!(heap.uuid.starts_with("GPU-"), "{heap:?}");
    assert_eq!((heap.live, heap.live_peak), (3 * MIB, 8 * MIB));
    // The size of a block is rounded up to a power of two.
    assert_eq!((heap.cached, heap.reserved), (8 * MIB, 12 * MIB));
    assert_eq!((heap.allocations, heap.frees), (2, 1));
    assert_eq!((heap.hard_limit, heap.soft_limit), (Some(64 * MIB), None));
    let [site] = found.leaks.sites.as_slice() else { panic!("{:?}", found.leaks) };
    assert!(site.line.contains("tests/publish.rs:"), "{site:?}");
    assert_eq!((site.bytes, site.allocations, site.kind.as_str()), (3 * MIB, 1, "device"));
    let refused = ask(&sockets(base.path())[0], &Question::Flush).unwrap().1;
    let Answer::Refused(refusal) = refused else { panic!("{refused:?}") };
    assert_eq!(refusal.kind, RefusalKind::NotAllowed);
    program.go_on();
    program.line("closed");
    assert_eq!(sockets(base.path()), []);
    program.go_on();
    assert!(program.child.wait().unwrap().success());
}

#[test]
fn control_flushes_and_sets_limit() {
    let base = tempfile::tempdir().unwrap();
    let mut program = Program::start(base.path(), Some("control"));
    let before = only(base.path()).status.unwrap();
    assert_eq!((before.heaps.len(), before.access), (2, Access::Control));
    let socket = sockets(base.path()).remove(0);
    let answer = |question| ask(&socket, &question).unwrap().1;
    let flushed = answer(Question::Flush);
    assert_eq!(flushed, Answer::GivenBack(before.heaps[0].cached), "{before:?}");
    assert_eq!(only(base.path()).status.unwrap().heaps[0].cached, 0);
    let limit =
        |bytes| answer(Question::Limit { device: "emulated:1GiB".to_owned(), bytes: Some(bytes) });
    assert_eq!(limit(32 * MIB), Answer::GivenBack(0));
    let Answer::Refused(refusal) = limit(1) else { panic!("accepted") };
    assert!(refusal.text.contains("limit of 1 byte"), "{refusal}");
    program.go_on();
    assert_eq!(program.line("limit"), "limit Some(33554432)");
}

#[test]
fn recording_is_controlled_from_outside() {
    let base = tempfile::tempdir().unwrap();
    let mut program = Program::start_test("scoped_program", base.path(), Some("control"));
    let socket = sockets(base.path()).remove(0);
    let answer = |question| ask(&socket, &question).unwrap().1;
    let Answer::Scopes(scopes) = answer(Question::Scopes) else { panic!("no scopes") };
    let [scope] = scopes.as_slice() else { panic!("{scopes:?}") };
    assert!(scope.name.contains("tests/publish.rs:"), "{scope:?}");
    assert_eq!((scope.live, scope.device.as_str()), (2 * MIB, "emulated:1GiB"));
    let refused =
        |answer| matches!(answer, Answer::Refused(one) if one.kind == RefusalKind::Failed);
    assert!(refused(answer(Question::StopRecording)));
    // An existing file is not overwritten.
    let taken = base.path().join(format!("gpuheap-{}.gph", program.child.id()));
    std::fs::write(&taken, "mine").unwrap();
    let Answer::Recordings(started) = answer(Question::StartRecording) else { panic!("none") };
    assert!(refused(answer(Question::StartRecording)));
    program.go_on();
    program.line("allocated");
    assert_eq!(answer(Question::StopRecording), Answer::Recordings(started.clone()));
    assert_eq!(answer(Question::Scopes), Answer::Scopes(Vec::new()));
    let path = base.path().join(format!("gpuheap-{}.2.gph", program.child.id()));
    assert_eq!(Path::new(&started[0].path), path);
    let traces = gpuheap_trace::read(&path, &gpuheap_trace::ReadOptions::default()).unwrap();
    assert_eq!(traces[0].summary().peak_live_bytes, 5 * MIB);
    assert_eq!(std::fs::read_to_string(taken).unwrap(), "mine");
    program.go_on();
    assert!(program.child.wait().unwrap().success());
}

/// Returns the resident bytes and the number of descriptors of a process.
fn resources(pid: u32) -> (u64, usize) {
    let pages = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    let pages: u64 = pages.split(' ').nth(1).unwrap().parse().unwrap();
    // Takes the least of several counts, because the server closes a finished connection late.
    let descriptors = (0..50).map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
    });
    (4096 * pages, descriptors.min().unwrap())
}

/// Sends the program the questions that a monitor sends in a day if it sends each every minute.
/// Neither this process nor the publishing process may then use more memory or descriptors.
#[test]
#[ignore = "another test starts it"]
fn questioner() {
    let base = std::env::var_os("XDG_RUNTIME_DIR").unwrap();
    let socket = sockets(Path::new(&base)).remove(0);
    let ask_all = |minutes: u32| {
        for _ in 0..minutes {
            for question in [Question::Status, Question::Leaks, Question::Scopes, Question::Held] {
                let answer = ask(&socket, &question).unwrap().1;
                assert!(!matches!(answer, Answer::Refused(_)), "{answer:?}");
            }
        }
    };
    let pids = [std::process::id(), socket.pid];
    ask_all(60);
    let before = pids.map(resources);
    ask_all(24 * 60);
    for (before, after) in before.into_iter().zip(pids.map(resources)) {
        assert!(after.0 < before.0 + MIB / 2, "{before:?} {after:?}");
        assert_eq!(after.1, before.1);
    }
}

#[test]
fn day_of_questions_grows_nothing() {
    let base = tempfile::tempdir().unwrap();
    let _program = Program::start_test("scoped_program", base.path(), Some("control"));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "questioner", "--ignored"]).env("XDG_RUNTIME_DIR", base.path());
    let ran = command.output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
}

#[test]
fn variable_zero_publishes_nothing() {
    let base = tempfile::tempdir().unwrap();
    let _program = Program::start(base.path(), Some("0"));
    assert!(!base.path().join("gpuheap").exists());
}
