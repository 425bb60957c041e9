//! Reads hostile captures. The command's memory is bounded by the file's size, and its output has
//! no control characters.

use std::process::Command;

use gpuheap_trace::MemoryKind;
use gpuheap_trace::capture::{Address, Deltas, Record, Time, header};

use crate::command::{Ran, ran};

/// Size of each file.
const BYTES: usize = 1 << 20;

/// Limit of the command's address space, KiB. An unbounded reader needs 310 MiB for a 1 MiB file.
const ADDRESS_SPACE: usize = 100 << 10;

/// Capture that grows to [`BYTES`].
struct File {
    bytes: Vec<u8>,
    deltas: Deltas,
}

impl File {
    /// Builds a file of about [`BYTES`]. Calls `records` with 1, 2, 3 and so on, to add records.
    fn of(mut records: impl FnMut(&mut File, u32)) -> Vec<u8> {
        let mut file = File { bytes: header().to_vec(), deltas: Deltas::default() };
        file.add(&Record::ThreadStart { time: Time(0), id: 1, name: "a\u{1b}[31m" });
        file.add(&Record::Text { text: "text\u{1b}[31m\u{9b}" });
        let mut number = 1;
        while file.bytes.len() < BYTES {
            records(&mut file, number);
            number += 1;
        }
        file.bytes
    }

    fn add(&mut self, record: &Record<'_>) {
        record.encode(&mut self.deltas, &mut self.bytes);
    }

    fn stack(&mut self, addresses: Vec<u64>, frames: Vec<u32>) {
        self.add(&Record::Stack { addresses: addresses.into(), frames: frames.into() });
    }

    fn allocate(&mut self, thread: u32, device: u32, stack: u32) {
        let address = Address(self.bytes.len() as u64);
        let (time, kind) = (Time(0), MemoryKind::Device);
        let (stream, bytes) = (0, u64::from(thread + stack));
        self.add(&Record::Allocate { time, thread, kind, device, stream, address, bytes, stack });
    }
}

fn report(file: &[u8], form: &str) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.gph");
    std::fs::write(&path, file).unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -v {ADDRESS_SPACE}; exec \"$@\""), "sh"]);
    shell.args([env!("CARGO_BIN_EXE_gpuheap"), "report", "--output", "-", "--format", form]);
    ran(shell.arg(path))
}

#[test]
fn memory_is_bounded_by_file() {
    let addresses = File::of(|file, number| {
        let first = u64::from(number) << 12;
        file.stack((first..first + 64).collect(), vec![]);
        file.allocate(1, 0, number);
    });
    let frames = File::of(|file, number| {
        file.add(&Record::Frame { function: 1, file: 1, line: number });
        file.stack(vec![], vec![number]);
        file.allocate(1, 0, number);
    });
    let threads = File::of(|file, number| {
        if number == 1 {
            file.add(&Record::Frame { function: 1, file: 1, line: 1 });
            file.stack(vec![], vec![1; 256]);
        }
        file.add(&Record::ThreadStart { time: Time(0), id: u64::from(number), name: "" });
        file.allocate(number, 0, 1);
    });
    let modules = File::of(|file, number| {
        let start = u64::from(number) << 4;
        let module = Record::Module { path: "m", build_id: "", start, end: start + 8, base: 0 };
        file.add(&module);
        file.stack(vec![start + 1], vec![]);
        file.allocate(1, 0, number);
    });
    let texts = File::of(|file, number| {
        if number == 1 {
            file.add(&Record::Text { text: &"long".repeat(BYTES / 8) });
        }
        file.add(&Record::Frame { function: 2, file: 2, line: number });
        file.stack(vec![], vec![number; 9]);
        file.allocate(1, 0, number);
    });
    let events = File::of(|file, _| file.allocate(1, 0, 0));
    let arguments = File::of(|file, number| {
        let arguments = "\0".repeat(if number == 1 { BYTES - 1000 } else { 0 });
        let (pid, parent, started_unix_ns) = (1, 1, 0);
        let arguments = arguments.as_str();
        file.add(&Record::Process { pid, parent, started_unix_ns, program: "", arguments });
        file.allocate(1, 0, 0);
    });
    let ranges = File::of(|file, number| {
        file.add(&Record::RangeStart { time: Time(0), thread: 0, name: 1 });
        file.add(&Record::RangeEnd { time: Time(0), range: number });
        if number < 256 {
            file.allocate(1, number, 0);
        }
    });
    let open = File::of(|file, _| {
        file.add(&Record::RangeStart { time: Time(0), thread: 0, name: 1 });
        file.allocate(1, 0, 0);
    });
    let devices = File::of(|file, number| file.allocate(1, number, 0));
    for (name, file, code) in [
        ("addresses", addresses, 2),
        ("frames", frames, 0),
        ("threads", threads, 0),
        ("modules", modules, 0),
        ("texts", texts, 0),
        ("events", events, 0),
        ("arguments", arguments, 0),
        ("devices", devices, 2),
        ("ranges", ranges, 0),
        ("open ranges", open, 0),
    ] {
        for form in ["text", "perfetto"] {
            let ran = report(&file, form);
            let end: String = ran.stderr.chars().take(500).collect();
            assert_eq!(ran.code, code, "{name} as {form}: {end}");
            let is_control = |c: char| c.is_control() && c != '\n';
            assert!(!(ran.stdout + &ran.stderr).contains(is_control), "{name} as {form}");
        }
    }
}
