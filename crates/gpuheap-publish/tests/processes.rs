//! Tests that a process answers another process's questions about its memory. The answering process
//! runs the test `program` of this file.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use gpuheap_publish::{
    Access, Answer, Detail, HeapStatus, Leaks, Member, OpenScope, Published, Question, Recorded,
    RefusalKind, Site, Socket, ask, join, of_process, sockets_in, survey,
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Heap with fixed figures.
struct Fixed;

impl Member for Fixed {
    fn heaps(&self) -> Vec<HeapStatus> {
        let (device, uuid) = ("cuda:0".to_owned(), "GPU-1".to_owned());
        vec![HeapStatus { device, uuid, live: 7, cached: 5, ..HeapStatus::default() }]
    }

    fn leaks(&self) -> Option<Leaks> {
        // Each character takes four bytes, so that the reply to a client exceeds a socket's buffer.
        let text = || "𝄞".repeat(200);
        let site = || Site { line: text(), function: text(), kind: text(), ..Site::default() };
        Some(Leaks { is_tracked: true, sites: (0..200).map(|_| site()).collect(), left_out: 0 })
    }

    fn flush(&self) -> Result<u64, String> {
        Ok(5)
    }

    fn scopes(&self) -> Vec<OpenScope> {
        let scope = |live| OpenScope { name: "load".to_owned(), live, ..OpenScope::default() };
        vec![scope(3), scope(4)]
    }

    fn start_recording(&self, file: &Path) -> Result<Option<Recorded>, String> {
        // Fails for a file in the tests' working folder, as if that folder could not be written.
        let path = file.display().to_string();
        match file.starts_with(std::env::current_dir().unwrap()) {
            true => Err("the folder cannot be written".to_owned()),
            false => Ok(Some(Recorded { path, stopped: None })),
        }
    }

    fn set_limit(&self, device: &str, bytes: Option<u64>) -> Result<Option<u64>, String> {
        match device {
            "cuda:0" => bytes.map(Some).ok_or_else(|| "a limit is needed".to_owned()),
            _ => Ok(None),
        }
    }
}

/// Heap whose lock is held forever.
struct Hanging;

impl Member for Hanging {
    fn heaps(&self) -> Vec<HeapStatus> {
        loop {
            std::thread::park();
        }
    }
}

/// Heap whose flush ends when a file `done` appears in the folder of the sockets.
struct Slow;

impl Member for Slow {
    fn flush(&self) -> Result<u64, String> {
        let folder = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR").unwrap());
        while !folder.join("done").exists() {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(5)
    }
}

/// Heap that cannot be flushed.
struct Failing;

impl Member for Failing {
    fn flush(&self) -> Result<u64, String> {
        Err("the device is lost".to_owned())
    }
}

/// Heap without lines.
struct Small;

impl Member for Small {
    fn heaps(&self) -> Vec<HeapStatus> {
        vec![HeapStatus { live: 7, ..HeapStatus::default() }]
    }
}

/// Heap that panics.
struct Panicking;

impl Member for Panicking {
    fn heaps(&self) -> Vec<HeapStatus> {
        panic!("a bug of the heap")
    }
}

/// Runs as the other process, until its stdin ends. Environment variables choose its behaviour.
#[test]
#[ignore = "the other tests start it"]
fn program() {
    let member: Arc<dyn Member> =
        match std::env::var("PUBLISH_TEST_MEMBER").unwrap_or_default().as_str() {
            "hanging" => Arc::new(Hanging),
            "slow" => Arc::new(Slow),
            "panicking" => Arc::new(Panicking),
            "small" => Arc::new(Small),
            _ => Arc::new(Fixed),
        };
    let access = match std::env::var_os("PUBLISH_TEST_CONTROL") {
        Some(_) => Access::Control,
        None => Access::Read,
    };
    // SAFETY: this is the default of a C program, and no other thread runs yet.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let membership = join(member, access).unwrap();
    let is_slow = std::env::var("PUBLISH_TEST_MEMBER").is_ok_and(|member| member == "slow");
    let _failing = is_slow.then(|| join(Arc::new(Failing), access).unwrap());
    let mut ready = format!("{}\n", membership.path().display());
    let children = std::env::var("PUBLISH_TEST_FORK").map_or(0, |count| count.parse().unwrap());
    for _ in 0..children {
        // SAFETY: another thread of the parent may hold locks during the fork. Of these locks, the
        // child takes only the lock of `join`, and `join` gives up after a second.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // A single child must outlive its parent, because a test checks that. If there are
            // several children, the kernel kills them when their parent ends.
            if children > 1 {
                // SAFETY: the call only sets the signal.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            }
            drop(membership);
            let own = join(Arc::new(Small), Access::Read);
            let path = own.as_ref().map(|own| own.path().display().to_string());
            println!("{}", path.unwrap_or_else(|error| error.to_string()));
            std::thread::sleep(Duration::from_secs(60));
            // SAFETY: the call does not run the parent's exit handlers.
            unsafe { libc::_exit(0) };
        }
        ready = format!("child {child}\n{ready}");
    }
    print!("{ready}");
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read(&mut [0]);
    drop(membership);
}

/// Prints the processes that publish in a folder. Also prints how many sockets have their process's
/// pid in the name. A test starts this in a new PID namespace, where pids differ from the names.
#[test]
#[ignore = "another test starts it"]
fn client() {
    let base = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR").unwrap());
    for one in surveyed(&base) {
        println!(
            "{:?} {:?} {:?}",
            one.pid,
            one.status.map(|status| status.heaps[0].live),
            one.failure
        );
    }
    let is_of_name = |socket: &Socket| !of_process(vec![socket.clone()], socket.pid).is_empty();
    println!("{} by name", sockets(&base).into_iter().filter(is_of_name).count());
}

/// Another process that publishes into a folder. It ends when the value is dropped.
struct Program {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    socket: PathBuf,
}

impl Program {
    /// Starts the program with `command`; `None` if the program ends before it prints its socket.
    fn spawned(mut command: Command, folder: &Path) -> Option<Program> {
        let mut child = command
            .args(["--exact", "program", "--ignored", "--nocapture"])
            .env("XDG_RUNTIME_DIR", folder)
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let output = BufReader::new(child.stdout.take()?);
        let mut program = Program { child, output, socket: PathBuf::new() };
        program.socket = PathBuf::from(program.next_line("/")?);
        Some(program)
    }

    fn start(folder: &Path, variables: &[(&str, &str)]) -> Program {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.envs(variables.iter().copied());
        Program::spawned(command, folder).unwrap()
    }

    /// Returns the next line that begins with `start`; `None` if the program ends before that line.
    fn next_line(&mut self, start: &str) -> Option<String> {
        let mut lines = self.output.by_ref().lines().map(Result::unwrap);
        lines.find(|line| line.starts_with(start))
    }

    /// Returns the next line that begins with `start`.
    fn line(&mut self, start: &str) -> String {
        self.next_line(start).expect("the program ended")
    }

    fn signal(&self, signal: i32) {
        signal_pid(self.child.id(), signal);
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal_pid(pid: u32, signal: i32) {
    // SAFETY: the process was started by this test and is not yet waited for.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
}

fn sockets(base: &Path) -> Vec<Socket> {
    // SAFETY: the call only returns a number.
    sockets_in(&base.join("gpuheap"), unsafe { libc::geteuid() }).unwrap()
}

fn only(base: &Path) -> Socket {
    let all = sockets(base);
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].clone()
}

fn surveyed(base: &Path) -> Vec<Published> {
    survey(&sockets(base), Detail::All)
}

fn refusal(answer: Answer) -> (RefusalKind, String) {
    match answer {
        Answer::Refused(refusal) => (refusal.kind, refusal.text),
        answer => panic!("{answer:?}"),
    }
}

/// Connects to a stopped program until its queue of clients is full.
fn fill_queue(path: &Path) -> Vec<OwnedFd> {
    let connect = |_| {
        let (flags, kind) = (SocketFlags::NONBLOCK, SocketType::STREAM);
        let client = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        rustix::net::connect(&client, &SocketAddrUnix::new(path).unwrap()).ok()?;
        Some(client)
    };
    let waiting: Vec<OwnedFd> = (0..10_000).map_while(connect).collect();
    assert!(waiting.len() < 10_000);
    waiting
}

#[test]
fn survey_returns_heaps_and_lines() {
    let base = tempfile::tempdir().unwrap();
    let programs = [(); 3].map(|()| Program::start(base.path(), &[]));
    let found = surveyed(base.path());
    let mut pids = programs.each_ref().map(|program| Some(program.child.id()));
    pids.sort_unstable();
    assert_eq!(found.iter().map(|one| one.pid).collect::<Vec<_>>(), pids);
    for one in &found {
        let status = one.status.as_ref().unwrap();
        assert_eq!((status.heaps[0].live, status.access), (7, Access::Read));
        assert!(status.program.starts_with("processes-"), "{status:?}");
        assert_eq!((one.leaks.sites.len(), one.leaks.left_out), (100, 100));
        assert_eq!(one.failure, None);
    }
    let lists = |detail| {
        let found = survey(&sockets(base.path()), detail).remove(0);
        (found.leaks.sites.len(), found.libraries.len(), found.scopes.len())
    };
    let counts = [Detail::Heaps, Detail::Lines, Detail::All].map(lists);
    assert_eq!(counts, [(0, 0, 0), (100, 0, 0), (100, 0, 2)]);
    let mode = fs::metadata(base.path().join("gpuheap")).unwrap().mode();
    assert_eq!(mode & 0o777, 0o700);
    programs.into_iter().for_each(Program::end);
    assert_eq!(sockets(base.path()), []);
}

#[test]
fn killed_programs_sockets_are_swept() {
    let base = tempfile::tempdir().unwrap();
    let program = Program::start(base.path(), &[]);
    let folder = program.socket.parent().unwrap().to_owned();
    drop(program);
    for number in 1..200 {
        let path = folder.join(format!("{}-1.sock", 4_194_304 + number));
        drop(UnixListener::bind(path).unwrap());
    }
    fs::write(folder.join("notes.txt"), "not a socket").unwrap();
    assert_eq!(sockets(base.path()).len(), 200);
    assert_eq!(surveyed(base.path()), []);
    assert_eq!(sockets(base.path()), []);
    assert!(folder.join("notes.txt").exists());
}

#[test]
fn hanging_heap_is_answered_busy() {
    let base = tempfile::tempdir().unwrap();
    let _program = Program::start(base.path(), &[("PUBLISH_TEST_MEMBER", "hanging")]);
    for question in [Question::Status, Question::Leaks] {
        let (kind, text) = refusal(ask(&only(base.path()), &question).unwrap().1);
        assert_eq!(kind, RefusalKind::Busy);
        assert!(text.starts_with("no answer within 1 s: a lock of the heap"), "{text}");
    }
    let found = surveyed(base.path());
    assert!(found[0].failure.as_ref().unwrap().contains("within 1 s"), "{found:?}");
}

#[test]
fn clients_during_flush_are_answered() {
    let base = tempfile::tempdir().unwrap();
    let variables = [("PUBLISH_TEST_MEMBER", "slow"), ("PUBLISH_TEST_CONTROL", "1")];
    let _program = Program::start(base.path(), &variables);
    let socket = only(base.path());
    let flushed = std::thread::scope(|scope| {
        let flush = scope.spawn(|| ask(&socket, &Question::Flush).unwrap().1);
        // Sends questions until one is refused because the program flushes. Questions that arrive
        // before the flush begins are answered.
        let busy = (0..100).find_map(|_| match ask(&socket, &Question::Status).unwrap().1 {
            Answer::Refused(refusal) => Some(refusal),
            _ => {
                std::thread::sleep(Duration::from_millis(10));
                None
            }
        });
        fs::write(base.path().join("done"), "").unwrap();
        let busy = busy.unwrap();
        assert_eq!(busy.kind, RefusalKind::Busy);
        assert!(busy.text.contains("the question of another client"), "{busy}");
        flush.join().unwrap()
    });
    // The second heap failed.
    assert_eq!(flushed, Answer::GivenBack(5));
}

#[test]
fn answering_threads_take_no_signals() {
    let base = tempfile::tempdir().unwrap();
    let program = Program::start(base.path(), &[]);
    assert!(ask(&only(base.path()), &Question::Status).is_ok());
    let tasks = fs::read_dir(format!("/proc/{}/task", program.child.id())).unwrap();
    let mut found = 0;
    for status in tasks.map(|task| fs::read_to_string(task.unwrap().path().join("status")).unwrap())
    {
        if status.starts_with("Name:\tgpuheap-publish")
            || status.starts_with("Name:\tgpuheap-answer")
        {
            let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
            let blocked = u64::from_str_radix(blocked, 16).unwrap();
            let is_blocked = |signal: i32| blocked & (1 << (signal - 1)) != 0;
            assert!([libc::SIGINT, libc::SIGTERM, libc::SIGUSR1].map(is_blocked) == [true; 3]);
            assert!(!is_blocked(libc::SIGSEGV), "{status}");
            found += 1;
        }
    }
    assert_eq!(found, 2);
}

#[test]
fn other_pid_namespace_is_answered() {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["-rp", "--fork", "--mount-proc"]);
        command
    };
    if !unshare().arg("true").output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this system allows no user namespaces");
        return;
    }
    let base = tempfile::tempdir().unwrap();
    let program = Program::start(base.path(), &[]);
    let client = |shown: &str| {
        let output = unshare()
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "client", "--ignored", "--nocapture"])
            .env("XDG_RUNTIME_DIR", base.path())
            .output()
            .unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        assert!(output.contains(shown) && output.contains("0 by name\n"), "{output}");
    };
    client("None Some(7) None\n");
    program.signal(libc::SIGSTOP);
    client("None None Some(\"no answer within 2 s");
    let _waiting = fill_queue(&program.socket);
    client("None None Some(\"its queue of questions is full");
}

#[test]
fn program_in_pid_namespace_has_pid() {
    let base = tempfile::tempdir().unwrap();
    let mut command = Command::new("unshare");
    command.args(["-rp", "--fork", "--kill-child"]).arg(std::env::current_exe().unwrap());
    let Some(program) = Program::spawned(command, base.path()) else {
        eprintln!("skipped: this system allows no user namespaces");
        return;
    };
    let socket = only(base.path());
    let pid = ask(&socket, &Question::Status).unwrap().0.unwrap();
    // In its own PID namespace, the program has pid 1.
    assert_eq!((socket.pid, pid == program.child.id()), (1, false));
    assert_eq!(of_process(sockets(base.path()), pid), [socket]);
    assert_eq!(of_process(sockets(base.path()), 1), []);
}

#[test]
fn survey_of_silent_sockets_is_bounded() {
    let base = tempfile::tempdir().unwrap();
    drop(Program::start(base.path(), &[]));
    let folder = base.path().join("gpuheap");
    let name = |number: u32| folder.join(format!("{}-1.sock", 4_194_304 + number));
    let silent: Vec<_> = (0..300).map(|number| UnixListener::bind(name(number)).unwrap()).collect();
    let found = surveyed(base.path());
    // Each of 64 threads has time for two sockets. One more result has the number of skipped
    // sockets.
    assert!(found.len() <= 129, "{}", found.len());
    let left_over = found.iter().filter_map(|one| one.failure.as_ref());
    let left_over: Vec<_> = left_over.filter(|text| text.starts_with("not asked")).collect();
    assert_eq!(left_over.len(), 1, "{left_over:?}");
    drop(silent);
    assert_eq!(surveyed(base.path()), []);
}

#[test]
fn survey_of_thousand_programs_is_bounded() {
    let base = tempfile::tempdir().unwrap();
    let variables = [("PUBLISH_TEST_FORK", "1000"), ("PUBLISH_TEST_MEMBER", "small")];
    let mut program = Program::start(base.path(), &variables);
    // Each of the 1,001 processes prints a line. `start` has read the first.
    for _ in 0..1000 {
        program.line("/");
    }
    let found = surveyed(base.path());
    let answers = found.iter().filter(|one| one.status.is_some()).count();
    let others = found.iter().filter_map(|one| one.failure.as_ref());
    // On a busy machine, a survey does not reach all sockets in its time, and counts the others.
    let left_over: usize = others
        .map(|text| match text.strip_prefix("not asked: user ") {
            Some(text) => text.split(' ').nth(2).unwrap().parse().unwrap(),
            None => 1,
        })
        .sum();
    assert!(answers > 0);
    assert_eq!(answers + left_over, 1001, "{answers} answers");
    drop(program);
    // The kernel takes time to end a thousand processes.
    while !surveyed(base.path()).is_empty() {}
    surveyed(base.path());
    assert_eq!(sockets(base.path()).len(), 0);
}

#[test]
fn panicking_heap_is_answered() {
    let base = tempfile::tempdir().unwrap();
    let _program = Program::start(base.path(), &[("PUBLISH_TEST_MEMBER", "panicking")]);
    for _ in 0..2 {
        let (kind, text) = refusal(ask(&only(base.path()), &Question::Status).unwrap().1);
        assert_eq!((kind, text.as_str()), (RefusalKind::Failed, "the answer panicked"));
    }
}

#[test]
fn stopped_program_is_reported() {
    let base = tempfile::tempdir().unwrap();
    let program = Program::start(base.path(), &[]);
    program.signal(libc::SIGSTOP);
    let found = surveyed(base.path());
    let text = found[0].failure.as_ref().unwrap();
    assert!(text.contains("the program may be stopped"), "{text}");
    let waiting = fill_queue(&program.socket);
    let error = ask(&only(base.path()), &Question::Status).unwrap_err();
    assert!(error.to_string().contains("its queue of questions is full"), "{error}");
    drop(waiting);
    program.signal(libc::SIGCONT);
    // The program first answers the clients that fill its queue, so this takes a while.
    let answers = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        ask(&only(base.path()), &Question::Status).is_ok()
    });
    assert!(answers);
}

#[test]
fn hostile_clients_do_not_stop_answers() {
    let base = tempfile::tempdir().unwrap();
    let program = Program::start(base.path(), &[]);
    let connect = || UnixStream::connect(&program.socket).unwrap();
    let silent = connect();
    let mut deaf = connect();
    deaf.write_all(b"{\"version\":1,\"question\":\"leaks\"}\n").unwrap();
    let mut gone = connect();
    gone.write_all(b"{\"version\":1,\"question\":\"leaks\"}\n").unwrap();
    drop(gone);
    let mut half = connect();
    half.write_all(b"{\"version\":1,").unwrap();
    // Each of the four clients above delays an answer by at most a second, so some tries may fail.
    let answer = (0..10).find_map(|_| ask(&only(base.path()), &Question::Status).ok());
    assert!(matches!(answer, Some((_, Answer::Status(_)))), "{answer:?}");
    drop((silent, deaf, half));
}

#[test]
fn malformed_questions_are_refused() {
    let base = tempfile::tempdir().unwrap();
    let program = Program::start(base.path(), &[]);
    let long = [b'['; 5000];
    for (line, reason) in [
        (&b"hello\n"[..], "expected value"),
        (&b"\xff\xfe\n"[..], "expected value"),
        (&b"{\"version\":9,\"question\":\"status\"}\n"[..], "its version is 9"),
        (&long[..], "longer than 4096 bytes"),
    ] {
        let mut client = UnixStream::connect(&program.socket).unwrap();
        client.write_all(line).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("malformed") && answer.contains(reason), "{answer}");
    }
    assert!(ask(&only(base.path()), &Question::Status).is_ok());
}

#[test]
fn changes_need_control() {
    let base = tempfile::tempdir().unwrap();
    let program = Program::start(base.path(), &[]);
    let (kind, text) = refusal(ask(&only(base.path()), &Question::Flush).unwrap().1);
    assert_eq!(kind, RefusalKind::NotAllowed);
    assert!(text.contains("GPUHEAP_PUBLISH=control"), "{text}");
    let (kind, _) = refusal(ask(&only(base.path()), &Question::StartRecording).unwrap().1);
    assert_eq!(kind, RefusalKind::NotAllowed);
    let Answer::Scopes(scopes) = ask(&only(base.path()), &Question::Scopes).unwrap().1 else {
        panic!("no scopes")
    };
    assert_eq!(scopes.iter().map(|scope| scope.live).collect::<Vec<_>>(), [4, 3]);
    program.end();
    let _program = Program::start(base.path(), &[("PUBLISH_TEST_CONTROL", "1")]);
    let socket = only(base.path());
    let answer = |question| ask(&socket, &question).unwrap().1;
    let Answer::Status(status) = answer(Question::Status) else { panic!("no status") };
    assert_eq!(status.heaps[0].access, Access::Control);
    assert_eq!(answer(Question::Flush), Answer::GivenBack(5));
    let limit = |device: &str, bytes| Question::Limit { device: device.to_owned(), bytes };
    assert_eq!(answer(limit("cuda:0", Some(9))), Answer::GivenBack(9));
    let reason = |question| refusal(answer(question)).1;
    assert_eq!(reason(limit("cuda:0", None)), "a limit is needed");
    assert_eq!(reason(limit("cuda:1", None)), "the program has no heap on that device");
    let Answer::Recordings(started) = answer(Question::StartRecording) else { panic!("none") };
    let file = format!("gpuheap-{}.gph", socket.pid);
    assert_eq!(started[0].path, base.path().join("gpuheap").join(file).display().to_string());
    assert_eq!(reason(Question::StopRecording), "no recording was started from outside");
}

#[test]
fn forked_child_answers_for_itself() {
    let base = tempfile::tempdir().unwrap();
    let mut program = Program::start(base.path(), &[("PUBLISH_TEST_FORK", "1")]);
    let other = PathBuf::from(program.line("/"));
    let mut pids: Vec<_> = surveyed(base.path()).iter().map(|one| one.pid).collect();
    pids.sort_unstable();
    let parent = Some(program.child.id());
    assert_eq!(pids.len(), 2, "{pids:?}");
    assert!(pids.contains(&parent));
    let child = pids.iter().copied().find(|pid| *pid != parent).unwrap().unwrap();
    // The child has a copy of the parent's socket, but does not answer on it.
    drop(program);
    let left: Vec<_> = surveyed(base.path()).iter().map(|one| one.pid).collect();
    signal_pid(child, libc::SIGKILL);
    assert_eq!(left, [Some(child)]);
    assert!(sockets(base.path()).len() == 1 && other.parent().unwrap().exists());
}

#[test]
fn folder_open_to_others_is_refused() {
    let base = tempfile::tempdir().unwrap();
    let folder = base.path().join("gpuheap");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    // SAFETY: the call only returns a number.
    let own = unsafe { libc::geteuid() };
    assert!(sockets_in(&folder, own).unwrap_err().to_string().contains("open to other users"));
    assert!(sockets_in(&folder, own + 1).is_err());
    // The program uses the other folder.
    let program = Program::start(base.path(), &[]);
    let shared = PathBuf::from(format!("/tmp/gpuheap-{own}"));
    assert_eq!(program.socket.parent(), Some(&*shared));
    assert!(sockets_in(&shared, own).unwrap().iter().any(|one| one.path == program.socket));
    program.end();
}
