//! Frames of recorded machines.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use gpuheap_doctor::{Machine, Recording};
use gpuheap_publish::{
    Access, HeapStatus, Leaks, LibraryMemory, OpenScope, Published, Site, Status,
};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Color;

use crate::draw::{Palette, frame};
use crate::recorded;
use crate::snapshot::{Examination, Snapshot};
use crate::terminal::Terminal;
use crate::tmux::Tmux;
use crate::view::{Action, Dialog, View};

const MIB: u64 = 1 << 20;

/// Returns a machine with `devices` GPUs of 80 GiB each. The processes have pids from 4000 on, and
/// are spread evenly over the GPUs. Every fourth process is a child of the first process.
fn machine(devices: u64, processes: u64) -> Machine {
    let device = |index: u64| {
        let own = (0..processes).filter(|process| process % devices == index);
        // Together, the processes use half of the devices' memory.
        let unit = 80 * 1024 * devices / (processes * processes).max(1);
        let bytes = |process: u64| (processes - process) * unit.max(1) * MIB;
        let used: u64 = own.clone().map(bytes).sum();
        let listed: Vec<String> = own
            .map(|process| {
                format!("{{\"pid\": {}, \"bytes\": {}}}", 4000 + process, bytes(process))
            })
            .collect();
        let total = 80 * 1024 * MIB;
        format!(
            "{{\"index\": {index}, \"name\": \"NVIDIA H100 80GB HBM3\", \"uuid\": \"GPU-{index}\",
              \"minor\": {index}, \"total\": {total}, \"used\": {used}, \"free\": {},
              \"reserved\": 0, \"processes\": [{}]}}",
            total - used,
            listed.join(", ")
        )
    };
    let devices: Vec<String> = (0..devices).map(device).collect();
    let mut text = format!(
        "== nvml\n{{\"driver\": \"580.95.05\", \"devices\": [{}]}}\n\
         == /proc/uptime\n99999.0 1.0\n== /proc/self/status\nUid:\t1000\n\
         == /etc/passwd\nann:x:1000:1000::/home/ann:/bin/sh\nben:x:1001:1001::/:/bin/sh\n\
         == /proc/300/stat\n300 (torchrun) S 1 300 300 0 0 0 0 0 0 0 9 9 0 0 20 0 1 0 900 0 0\n\
         == /proc/300/cmdline\ntorchrun\\0--nproc\\08\\0train.py\\0\n",
        devices.join(", ")
    );
    for process in 0..processes {
        let (pid, user) = (4000 + process, 1000 + process % 2);
        let parent = if process % 4 == 0 { 300 } else { 1 };
        text += &format!(
            "== /proc/{pid}/stat\n{pid} (python3) S {parent} {pid} {pid} 0 0 0 0 0 0 0 9 9 0 0 20 \
             0 1 0 {} 0 0\n== /proc/{pid}/status\nUid:\t{user}\n\
             == /proc/{pid}/cmdline\n/usr/bin/python3\\0train.py\\0--rank\\0{process}\\0\n",
            1000 + process * 9000
        );
    }
    let mut machine = Machine::read(Recording::parse(&text).unwrap());
    machine.refresh();
    machine
}

/// Returns a program whose lines of code hold the given bytes.
fn program(pid: Option<u32>, lines: &[(&str, u64)]) -> Published {
    let live = lines.iter().map(|(_, bytes)| bytes).sum();
    let heap = HeapStatus {
        device: "cuda:0".to_owned(),
        pool: "stitched".to_owned(),
        live,
        live_peak: live + 512 * MIB,
        cached: 300 * MIB,
        hard_limit: Some(40 << 30),
        access: Access::Control,
        ..HeapStatus::default()
    };
    let site = |(line, bytes): &(&str, u64)| Site {
        line: (*line).to_owned(),
        function: "step".to_owned(),
        device: "cuda:0".to_owned(),
        kind: "device".to_owned(),
        allocations: 7,
        bytes: *bytes,
    };
    let sites = lines.iter().filter(|(_, bytes)| *bytes > 0).map(site).collect();
    Published {
        pid,
        uid: 1000,
        status: Some(Status {
            program: "python3 train.py --rank 0".to_owned(),
            access: Access::Control,
            heaps: vec![heap],
            left_out: 0,
        }),
        leaks: Leaks { is_tracked: true, sites, left_out: 0 },
        ..Published::default()
    }
}

/// Returns the view of a program with libraries and scopes.
fn with_libraries() -> View {
    let mut program = program(Some(4000), &[("/home/ann/train/log.py:41", 90 * MIB)]);
    let library = |name: &str, live, cached, is_own| LibraryMemory {
        name: name.to_owned(),
        device: "cuda:0".to_owned(),
        live,
        cached,
        is_own,
        failure: None,
    };
    let failure = Some("RMM cannot allocate here; it needs a real GPU and its driver".to_owned());
    program.libraries = vec![
        library("PyTorch", 2048 * MIB, 0, false),
        library("CuPy", 300 * MIB, 1024 * MIB, true),
        LibraryMemory { failure, ..library("RMM", 0, 0, false) },
    ];
    let scope = |number: u64| OpenScope {
        name: format!("step {number}"),
        live: number * MIB,
        limit: (number == 7).then_some(512 * MIB),
        ..OpenScope::default()
    };
    program.scopes = (1..8).rev().map(scope).collect();
    let mut view = after_a_minute(1, 3);
    view.figures.take_programs(91, vec![program]);
    view
}

#[test]
fn libraries_and_scopes_have_bytes() {
    for (width, height) in [(80, 24), (120, 40)] {
        let text = text(&with_libraries(), width, height);
        assert!(text.lines().all(|line| line.chars().count() <= width.into()), "{text}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for shown in [
            "libraries 2 GiB PyTorch on cuda:0, in the heap; 300 MiB CuPy on cuda:0, in its own pool, \
             with 1 GiB cached",
            "RMM takes no memory from the heap: RMM cannot allocate here; it needs a real GPU",
            "scopes 7 MiB step 7, limit 512 MiB; 6 MiB step 6; 5 MiB step 5; 4 MiB step 4; 3 MiB \
             step 3; 2 more",
        ] {
            assert!(words.contains(shown), "{shown}: {text}");
        }
    }
}

/// Returns the view of a machine after one and a half minutes. In pid 4000, `log.py` keeps 1 MiB a
/// second, and `model.py` takes and returns memory in each step.
fn after_a_minute(devices: u64, processes: u64) -> View {
    let mut view = View::default();
    let machine = machine(devices, processes);
    for second in 0..=90 {
        let mut snapshot = Snapshot::new(&machine);
        if let Some(account) = snapshot.accounts.first_mut() {
            account.used_bytes += second * 256 * MIB;
            account.processes[0].bytes =
                account.processes[0].bytes.map(|bytes| bytes + second * MIB);
        }
        view.figures.take_snapshot(second, snapshot);
        let step = if second % 2 == 0 { 2048 * MIB } else { 512 * MIB };
        let lines = [
            ("/home/ann/train/model.py:118", step),
            ("/home/ann/train/data.py:20", 64 * MIB),
            ("/home/ann/train/log.py:41", second * MIB),
        ];
        view.figures.take_programs(second, vec![program(Some(4000), &lines)]);
    }
    view
}

fn draw(view: &View, width: u16, height: u16) -> Buffer {
    frame(view, Rect::new(0, 0, width, height), Palette { is_coloured: false })
}

/// Returns a frame's text, without spaces at the ends of lines.
fn text(view: &View, width: u16, height: u16) -> String {
    let buffer = draw(view, width, height);
    let row = |cells: &[ratatui_core::buffer::Cell]| {
        let row: String = cells.iter().map(|cell| cell.symbol()).collect();
        row.trim_end().to_owned() + "\n"
    };
    buffer.content().chunks(width.into()).map(row).collect()
}

fn press(view: &mut View, keys: &str) -> Option<Action> {
    let code = |letter| match letter {
        '\n' => KeyCode::Enter,
        '\u{1b}' => KeyCode::Esc,
        '↓' => KeyCode::Down,
        letter => KeyCode::Char(letter),
    };
    let press = |letter| view.press(KeyEvent::new(code(letter), KeyModifiers::NONE));
    keys.chars().map(press).last().flatten()
}

#[test]
fn eight_devices_at_80_columns() {
    insta::assert_snapshot!(text(&after_a_minute(8, 200), 80, 24));
}

#[test]
fn one_device_at_120_columns() {
    insta::assert_snapshot!(text(&after_a_minute(1, 5), 120, 30));
}

#[test]
fn growing_line_comes_first() {
    let mut view = after_a_minute(1, 2);
    press(&mut view, "\n");
    insta::assert_snapshot!(text(&view, 80, 24));
}

#[test]
fn new_line_grows_from_zero() {
    let mut view = View::default();
    for second in 0..10 {
        let bytes = if second < 2 { 0 } else { 9 * MIB };
        view.figures.take_programs(second, vec![program(Some(1), &[("a.py:1", bytes)])]);
    }
    let lines = view.figures.lines(&view.figures.programs[0]);
    assert_eq!(lines[0].growth.map(|growth| growth.bytes), Some(9 << 20));
}

#[test]
fn order_changes_with_key() {
    let mut view = after_a_minute(2, 6);
    let first = |view: &View| view.processes()[0].pid.unwrap();
    let mut firsts = vec![first(&view)];
    for _ in 0..5 {
        press(&mut view, "s");
        firsts.push(first(&view));
    }
    // With each press of `s`, the order is: memory, growth, cached bytes, age, pid, and memory
    // again.
    assert_eq!(firsts, [4000, 4000, 4000, 4005, 4000, 4000]);
}

#[test]
fn tree_shows_parents() {
    let mut view = after_a_minute(2, 8);
    press(&mut view, "t");
    insta::assert_snapshot!(text(&view, 80, 24));
}

#[test]
fn filter_keeps_matching_processes() {
    let mut view = after_a_minute(1, 200);
    press(&mut view, "/rank 19");
    assert!(text(&view, 80, 24).contains("Filter: rank 19_"));
    press(&mut view, "\n");
    let pids: Vec<u32> = view.processes().iter().filter_map(|row| row.pid).collect();
    assert_eq!(pids, [4019, 4190, 4191, 4192, 4193, 4194, 4195, 4196, 4197, 4198, 4199]);
    press(&mut view, "\u{1b}");
    assert_eq!(view.processes().len(), 200);
    press(&mut view, "/nothing like it\n");
    assert!(text(&view, 80, 24).contains("no process matches the filter"));
}

#[test]
fn selection_follows_its_process() {
    let mut view = after_a_minute(1, 5);
    press(&mut view, "↓↓");
    let selected = |view: &View| {
        let rows = view.processes();
        rows[view.selected(&rows)].pid
    };
    assert_eq!(selected(&view), Some(4002));
    press(&mut view, "ssss");
    assert_eq!(selected(&view), Some(4002));
    view.figures.take_snapshot(91, Snapshot::new(&machine(1, 2)));
    assert_eq!(selected(&view), Some(4000));
}

/// Examines a machine that the doctor's tests recorded, and returns the view of it.
fn examined(name: &str) -> View {
    let text = recorded::text_of(name);
    let mut machine = Machine::read(Recording::parse(&text).unwrap());
    let mut view = View::default();
    view.figures.take_snapshot(0, Snapshot::new(&machine));
    view.figures.take_programs(0, machine.programs.clone());
    view.figures.examination = Some(Examination::new(&mut machine));
    view
}

#[test]
fn findings_are_listed_and_explained() {
    let mut view = examined("two_h200_orphan");
    press(&mut view, "d");
    let listed = text(&view, 80, 24);
    press(&mut view, "\n");
    insta::assert_snapshot!(listed + &text(&view, 80, 24));
}

#[test]
fn libraries_are_named() {
    let text = text(&examined("../rules/p25/fires"), 80, 24);
    assert!(text.contains("pid 4000  python3 train.py  PyTorch"), "{text}");
}

/// Presses `f` to free memory. The view requests an examination, and gets the last one again.
fn free(view: &mut View) {
    assert_eq!(press(view, "f"), Some(Action::Examine));
    let found = view.figures.examination.clone().unwrap();
    view.take_examination(found);
}

#[test]
fn free_asks_before_flush() {
    let mut view = examined("../rules/p25/fires");
    free(&mut view);
    insta::assert_snapshot!(text(&view, 80, 24));
    assert_eq!(press(&mut view, "x"), None);
    assert!(matches!(view.dialog, Dialog::Question { .. }));
    assert!(matches!(press(&mut view, "y"), Some(Action::Flush(cache)) if cache.pid == 4000));
}

#[test]
fn free_changes_nothing_of_recording() {
    let mut view = examined("../rules/p25/fires");
    view.is_recording = true;
    free(&mut view);
    assert!(matches!(view.dialog, Dialog::Text { .. }));
}

#[test]
fn free_asks_before_orphan_ends() {
    let mut view = examined("two_h200_orphan");
    free(&mut view);
    let Dialog::Question { text, .. } = &view.dialog else { panic!("{:?}", view.dialog) };
    assert!(text.contains("It is a proven orphan."), "{text}");
    assert_eq!(press(&mut view, "n"), None);
    assert_eq!(view.dialog, Dialog::None);
}

#[test]
fn free_of_living_process_shows_steps() {
    let mut view = examined("several_users");
    free(&mut view);
    let Dialog::Text { title, text, .. } = &view.dialog else { panic!("{:?}", view.dialog) };
    assert_eq!(title, "Pid 4000 is neither flushed nor ended from here");
    assert!(text.contains("$ kill 4000"), "{text}");
}

#[test]
fn help_names_keys() {
    let mut view = after_a_minute(1, 3);
    press(&mut view, "h");
    insta::assert_snapshot!(text(&view, 80, 24));
}

#[test]
fn silent_program_keeps_its_row() {
    let mut view = after_a_minute(1, 2);
    let failure = Some("no answer within 2 s; the program may be stopped".to_owned());
    let silent = Published { failure, status: None, ..program(Some(4000), &[]) };
    view.figures.take_programs(91, vec![silent]);
    let text = text(&view, 80, 24);
    assert!(text.contains("no answer within 2 s"), "{text}");
    assert!(text.contains("4001"), "{text}");
}

#[test]
fn program_of_other_namespace_is_shown() {
    let mut view = View::default();
    view.figures.take_programs(0, vec![program(None, &[("a.py:1", 4)])]);
    let text = text(&view, 80, 24);
    assert!(text.contains("other namespace  python3 train.py"), "{text}");
}

#[test]
fn hostile_text_steers_no_terminal() {
    let mut view = View::default();
    let mut hostile = program(Some(7), &[("\u{1b}[2J\n.py:1", 4)]);
    hostile.status.as_mut().unwrap().program = "\u{1b}]0;x\u{7}".to_owned();
    hostile.status.as_mut().unwrap().heaps[0].device = "\r\n\u{9b}31m".to_owned();
    view.figures.take_programs(0, vec![hostile]);
    let drawn = draw(&view, 80, 24);
    let has_control = |text: &str| text.contains(|c: char| c.is_control());
    assert!(drawn.content().iter().all(|cell| !has_control(cell.symbol())));
    let once = crate::draw::text(&view, 80);
    assert!(once.lines().all(|line| !has_control(line)), "{once:?}");
}

#[test]
fn every_size_is_drawn() {
    for keys in ["", "h", "d", "\n", "/x"] {
        let mut view = after_a_minute(9, 30);
        press(&mut view, keys);
        for (width, height) in (0..40).flat_map(|width| (0..12).map(move |high| (width, high))) {
            assert_eq!(draw(&view, width, height).area().area(), u32::from(width * height));
        }
    }
}

#[test]
fn colour_is_left_out_on_request() {
    let view = after_a_minute(1, 2);
    let colours = |is_coloured| {
        let drawn = frame(&view, Rect::new(0, 0, 80, 24), Palette { is_coloured });
        drawn.content().iter().filter(|cell| cell.fg != Color::Reset).count()
    };
    assert_eq!(colours(false), 0);
    assert!(colours(true) > 0);
}

#[test]
fn text_has_all_processes_and_lines() {
    insta::assert_snapshot!(crate::draw::text(&after_a_minute(2, 5), 80));
}

/// Panics while the terminal shows a frame.
#[test]
#[ignore = "the test below starts it in a terminal"]
fn panicking_screen() {
    let mut terminal = Terminal::enter().unwrap();
    terminal.show(draw(&after_a_minute(1, 3), 80, 24)).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(1));
    panic!("the frame after this one");
}

#[test]
fn panic_leaves_terminal_as_found() {
    let Some(tmux) = Tmux::start() else { return };
    let before = tmux.state();
    let program = std::env::current_exe().unwrap();
    let arguments = "--exact tests::panicking_screen --ignored --nocapture";
    // A backtrace would scroll the message away.
    tmux.run(&format!("RUST_BACKTRACE=0 {} {arguments}; echo ended", program.display()));
    tmux.wait_for("MEMORY");
    assert_ne!(tmux.state(), before);
    let text = tmux.wait_for("\nended");
    assert!(text.contains("the frame after this one"), "{text}");
    assert_eq!(tmux.state(), before);
}
