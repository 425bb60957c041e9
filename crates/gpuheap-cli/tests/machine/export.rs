//! Tests the process of `gpuheap export`: its arguments, its HTTP responses and its exit.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;

use crate::{gpuheap, library, publish, recorded};

/// A serving process.
struct Exporter {
    child: Child,
    stderr: BufReader<ChildStderr>,
    /// Lines on stderr before it served.
    notes: String,
    address: String,
}

impl Exporter {
    /// Starts a process on a free port, and waits until it serves.
    fn start(command: &mut Command) -> Exporter {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let (mut notes, mut line) = (String::new(), String::new());
        while stderr.read_line(&mut line).unwrap() > 0 {
            if let Some((_, rest)) = line.split_once("serves http://") {
                let address = rest.split('/').next().unwrap().to_owned();
                return Exporter { child, stderr, notes, address };
            }
            notes.push_str(&std::mem::take(&mut line));
        }
        let status = child.wait().unwrap();
        panic!("{status}: {notes}");
    }

    fn scrape(&self) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// Ends the process with a signal. Returns its exit code, and the remaining lines on stderr.
    fn end(mut self, signal: i32) -> (Option<i32>, String) {
        // SAFETY: the process was started by this test and is not yet waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
        let mut text = String::new();
        self.stderr.read_to_string(&mut text).unwrap();
        (self.child.wait().unwrap().code(), text)
    }
}

fn export() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuheap"));
    command.args(["export", "--listen", "127.0.0.1:0"]);
    command
}

#[test]
fn once_prints_recorded_machine() {
    let folder = tempfile::tempdir().unwrap();
    let file = recorded::write("two_h200_orphan", folder.path());
    let ran = gpuheap(&["export", "--once", "--machine", file.to_str().unwrap()]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(
        ran.stdout.contains("\ngpuheap_doctor_finding{rule=\"P01\",severity=\"fail\"} 1\n"),
        "{}",
        ran.stdout
    );
}

#[test]
fn once_without_gpu_prints_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = recorded::write("no_gpu", folder.path());
    let ran = gpuheap(&["export", "--once", "--machine", file.to_str().unwrap()]);
    assert_eq!((ran.code, ran.stdout.as_str()), (3, ""));
    assert!(ran.stderr.starts_with("error: no NVIDIA GPU: "), "{}", ran.stderr);
}

#[test]
fn wrong_use_is_one_line() {
    let mut errors = String::new();
    for arguments in [
        &["--listen", "localhost"][..],
        &["--listen", ":9837"],
        &["--listen", "127.0.0.1:99999"],
        &["--listen", "192.0.2.1:9837"],
        &["--listen"],
        &["--interval", "0.5s"],
        &["--interval", "15"],
        &["--top-lines", "101"],
        &["--top-lines", "-1"],
        &["--once", "--interval", "1s"],
        &["--machine", "/nosuch"],
    ] {
        let ran = gpuheap(&[&["export"], arguments].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{arguments:?}: {}", ran.stderr);
        errors.push_str(&ran.stderr);
    }
    insta::assert_snapshot!(errors);
}

#[test]
fn taken_port_is_wrong_use() {
    let exporter = Exporter::start(&mut export());
    let ran = gpuheap(&["export", "--listen", &exporter.address]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{}", ran.stderr);
    let text = format!("error: --listen {}: Address already in use", exporter.address);
    assert!(ran.stderr.starts_with(&text), "{}", ran.stderr);
    exporter.end(libc::SIGTERM);
}

#[test]
fn signals_end_with_code_zero() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let exporter = Exporter::start(&mut export());
        assert!(exporter.scrape().contains("\ngpuheap_build_info{"));
        assert_eq!(exporter.end(signal), (Some(0), String::new()));
    }
}

#[test]
fn open_address_is_noted() {
    let folder = tempfile::tempdir().unwrap();
    let file = recorded::write("h200_training", folder.path());
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuheap"));
    command.current_dir(folder.path());
    command.args(["export", "--listen", "0.0.0.0:0", "--machine"]).arg(file.file_name().unwrap());
    let exporter = Exporter::start(&mut command);
    let notes = exporter.notes.replace(&exporter.address, "ADDRESS");
    exporter.end(libc::SIGTERM);
    insta::assert_snapshot!(notes);
}

#[test]
fn scrape_agrees_with_status() {
    let own = std::process::id();
    let description = format!(
        r#"{{"driver": "580.1", "devices": [{{"profile": "t4", "uuid": "GPU-a",
            "processes": [{{"pid": {own}, "bytes": 1073741824}}]}}]}}"#
    );
    let folder = library::folder(&[&library::NVML]);
    let program = Path::new(env!("CARGO_BIN_EXE_gpuheap"));
    let command = || {
        let variables = [("GPUHEAP_EMULATED_NVML", description.as_str())];
        library::command(program, &folder, &variables)
    };
    let json = crate::ran(command().args(["status", "--json"])).json();
    let exporter = Exporter::start(command().args(["export", "--listen", "127.0.0.1:0"]));
    let text = exporter.scrape();
    exporter.end(libc::SIGTERM);
    let device = &json["devices"][0];
    for (state, field) in
        [("used", "used_bytes"), ("free", "free_bytes"), ("reserved", "reserved_bytes")]
    {
        let sample = format!(
            "gpuheap_device_memory_bytes{{gpu=\"0\",uuid=\"GPU-a\",state=\"{state}\"}} {}\n",
            device[field]
        );
        assert!(text.contains(&sample), "{sample} {text}");
    }
    assert_eq!(device["processes"][0]["bytes"], Value::from(1 << 30));
    assert!(text.contains(&format!("pid=\"{own}\",comm=\"")), "{text}");
}

#[test]
fn published_heap_is_exported() {
    let folder = tempfile::tempdir().unwrap();
    let program = publish::start(folder.path());
    let exporter = Exporter::start(export().env("XDG_RUNTIME_DIR", folder.path()));
    let text = exporter.scrape();
    exporter.end(libc::SIGTERM);
    let pid = program.0.id();
    let labels = format!("{{pid=\"{pid}\",program=\"machine-");
    let sample = |name: &str| {
        let start = format!("gpuheap_{name}{labels}");
        let line = text.lines().find(|line| line.starts_with(&start));
        line.unwrap_or_else(|| panic!("{start} {text}")).rsplit(' ').next().unwrap().to_owned()
    };
    for (name, value) in [
        ("heap_live_bytes", 4 << 20),
        ("heap_cached_bytes", 8 << 20),
        ("heap_reserved_bytes", 12 << 20),
        ("heap_limit_bytes", 64 << 20),
        ("heap_frees_total", 1),
        ("line_bytes", 4 << 20),
    ] {
        assert_eq!(sample(name), value.to_string(), "{name}");
    }
}
