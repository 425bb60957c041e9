//! Compares the model of PyTorch's allocator with random programs that PyTorch ran on a GPU.
//! `torch_oracle/record.py` recorded the programs. Its docstring describes the columns.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;

use flate2::read::GzDecoder;
use gpuheap_replay::models::torch::{Settings, Torch};
use gpuheap_replay::{Model, Request, Ticket};

struct Recording {
    name: String,
    settings: Settings,
    device_memory: u64,
    streams: Vec<u64>,
    rows: Vec<Row>,
    /// Address and bytes of the segments that do not grow in place. The model uses these addresses.
    segments: Vec<(u64, u64)>,
    driver_events: Vec<(bool, u64, u64)>,
}

struct Row {
    op: char,
    id: u64,
    bytes: u64,
    stream: usize,
    pool: u32,
    address: u64,
    /// The allocator's statistics after the operation, and whether the request was met.
    shown: Shown,
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
struct Shown {
    met: bool,
    allocated: u64,
    reserved: u64,
    active: u64,
    inactive_split: u64,
    segments: u64,
    retries: u64,
    failures: u64,
}

impl Recording {
    fn read(path: &Path) -> Self {
        let mut lines = BufReader::new(GzDecoder::new(File::open(path).unwrap())).lines();
        let mut next = || lines.next().map(Result::unwrap);
        let head: serde_json::Value =
            serde_json::from_str(next().unwrap().trim_start_matches("# ")).unwrap();
        assert_eq!(head["spoiled"], false, "{}", path.display());
        let mut settings: Settings = head["settings"].as_str().unwrap().parse().unwrap();
        if let Some(fraction) = head["fraction"].as_f64() {
            settings.set_memory_fraction(fraction).unwrap();
        }
        let mut recording = Self {
            name: head["name"].as_str().unwrap().to_owned(),
            settings,
            device_memory: head["device_memory"].as_u64().unwrap(),
            streams: head["streams"]
                .as_array()
                .unwrap()
                .iter()
                .map(|stream| stream.as_u64().unwrap())
                .collect(),
            rows: Vec::new(),
            segments: Vec::new(),
            driver_events: Vec::new(),
        };
        next();
        while let Some(line) = next() {
            let fields: Vec<&str> = line.split(',').collect();
            if fields[0] == "S" {
                let [bytes, stream, address] =
                    [2, 3, 6].map(|field| fields[field].parse().unwrap());
                let is_taken = matches!(fields[1], "alloc" | "map");
                if fields[1] == "alloc" {
                    recording.segments.push((address, bytes));
                }
                recording.driver_events.push((is_taken, bytes, stream));
                continue;
            }
            let number = |field: usize| -> u64 { fields[field].parse().unwrap() };
            recording.rows.push(Row {
                op: fields[0].chars().next().unwrap(),
                id: number(1),
                bytes: number(2),
                stream: number(3) as usize,
                pool: number(4) as u32,
                address: number(6),
                shown: Shown {
                    met: number(5) == 1,
                    allocated: number(7),
                    reserved: number(8),
                    active: number(9),
                    inactive_split: number(10),
                    segments: number(11),
                    retries: number(12),
                    failures: number(13),
                },
            });
        }
        recording
    }

    /// Runs the recorded operations through gpuheap's model of PyTorch's allocator. Returns the
    /// first difference from PyTorch's own figures.
    fn compare(&self) -> Result<(), String> {
        let mut model = Torch::new(self.settings.clone(), self.device_memory);
        model.follow_addresses(self.segments.iter().copied());
        let mut live: HashMap<u64, (Ticket, usize)> = HashMap::new();
        let mut uses: HashMap<u64, HashSet<usize>> = HashMap::new();
        let mut held: HashSet<usize> = HashSet::new();
        // Freed blocks, each with the streams that the block waits for.
        let mut pending: Vec<(Ticket, HashSet<usize>)> = Vec::new();
        for (number, row) in self.rows.iter().enumerate() {
            let mut met = true;
            let mut address = 0;
            match row.op {
                'a' => {
                    pending.retain(|(ticket, waits)| {
                        if waits.is_empty() {
                            model.complete(*ticket);
                        }
                        !waits.is_empty()
                    });
                    let stream = self.streams[row.stream];
                    let request = Request { bytes: row.bytes, stream, pool: row.pool };
                    match model.allocate(request) {
                        Ok(ticket) => {
                            address = model.address(ticket).unwrap();
                            live.insert(row.id, (ticket, row.stream));
                        }
                        Err(_) => met = false,
                    }
                }
                'f' => {
                    let (ticket, _) = live.remove(&row.id).unwrap();
                    model.free(ticket, 0);
                    match uses.remove(&row.id) {
                        None => model.complete(ticket),
                        Some(streams) => {
                            pending.push((ticket, streams.intersection(&held).copied().collect()));
                        }
                    }
                }
                'u' => {
                    if live[&row.id].1 != row.stream {
                        uses.entry(row.id).or_default().insert(row.stream);
                    }
                }
                'h' => {
                    held.insert(row.stream);
                }
                'r' => {
                    held.remove(&row.stream);
                    for (_, waits) in &mut pending {
                        waits.remove(&row.stream);
                    }
                }
                'e' => model.empty_cache(),
                other => panic!("operation {other}"),
            }
            let figures = model.figures();
            let shown = Shown {
                met,
                allocated: figures.allocated,
                reserved: figures.reserved,
                active: figures.active,
                inactive_split: figures.inactive_split,
                segments: figures.segments,
                retries: figures.retries,
                failures: figures.failures,
            };
            let fixed = !self.settings.expandable_segments();
            if shown != row.shown || (fixed && address != row.address) {
                return Err(format!(
                    "{}: operation {number}, {} of {} bytes on stream {}:\nPyTorch {:?} at {:#x}\n\
                     model   {shown:?} at {address:#x}",
                    self.name, row.op, row.bytes, row.stream, row.shown, row.address
                ));
            }
        }
        let ours: Vec<_> = model
            .driver_events()
            .iter()
            .map(|event| (event.is_taken, event.bytes, event.stream))
            .collect();
        let first = ours.iter().zip(&self.driver_events).position(|(ours, theirs)| ours != theirs);
        if ours != self.driver_events {
            return Err(format!("{}: segments differ from event {first:?} on", self.name));
        }
        Ok(())
    }
}

#[test]
fn random_programs_match_pytorch() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/oracle");
    let mut paths: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    let mut operations = 0;
    let mut differences = Vec::new();
    for path in &paths {
        let recording = Recording::read(path);
        operations += recording.rows.len();
        differences.extend(recording.compare().err());
    }
    assert!(
        differences.is_empty(),
        "{} of {}:\n{}",
        differences.len(),
        paths.len(),
        differences.join("\n")
    );
    assert!(operations >= 50_000, "{operations}");
}
