//! Helpers that run a command and read its output.

use std::path::{Path, PathBuf};
use std::process::Command;

use gpuheap::PoolKind;

pub(crate) use crate::command::{Ran, ran};

/// Traces that a debug build replays quickly.
pub(crate) const SHORT: [&str; 5] = [
    "cupy_groupby.csv.gz",
    "gpt_train_short.csv.gz",
    "gpt_train_short.snapshot.pickle.gz",
    "two_streams.csv.gz",
    "two_streams.snapshot.pickle.gz",
];

/// Returns the names of all pools.
pub(crate) fn pools() -> Vec<&'static str> {
    PoolKind::ALL.map(PoolKind::name).to_vec()
}

/// Returns `--pool` options for all pools of gpuheap.
pub(crate) fn own_pools() -> Vec<&'static str> {
    pools().into_iter().flat_map(|pool| ["--pool", pool]).collect()
}

pub(crate) fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces")
}

/// Returns the folder of the recordings that the models are compared with.
pub(crate) fn recordings() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpuheap-replay/tests/data")
}

pub(crate) fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuheap"));
    command.current_dir(folder).args(arguments);
    command
}

/// Runs `gpuheap replay` with these arguments, in the folder of the traces.
pub(crate) fn replay(arguments: &[&str]) -> Ran {
    replay_in(&traces(), arguments)
}

/// Runs `gpuheap replay` in `folder`.
pub(crate) fn replay_in(folder: &Path, arguments: &[&str]) -> Ran {
    ran(&mut command(folder, &[&["replay"], arguments].concat()))
}

/// Returns a CSV log. Each row has an action, a pointer and a size.
pub(crate) fn log(rows: &[(&str, u64, u64)]) -> String {
    let mut text = "Thread,Time,Action,Pointer,Size,Stream\n".to_owned();
    for (index, (action, pointer, size)) in rows.iter().enumerate() {
        let (minute, second) = (index / 60 % 60, index % 60);
        let time = format!("{:02}:{minute:02}:{second:02}.000000", 10 + index / 3600);
        text += &format!("1,{time},{action},{pointer:#x},{size},0x0\n");
    }
    text
}

/// Returns the output with its only column of times blanked out.
pub(crate) fn without_times(text: &str) -> String {
    const COLUMN: &str = "ns/event";
    let mut column = None;
    let mut lines = Vec::new();
    for line in text.lines() {
        if let Some(start) = line.find(COLUMN) {
            column = Some(start..start + COLUMN.len());
        }
        if line.is_empty() {
            column = None;
        }
        let is_row = pools().iter().any(|pool| line.starts_with(pool));
        match &column {
            Some(column) if is_row && !line.contains("fails at ") && !line.ends_with("  -") => {
                let time = line[column.clone()].trim().replace(',', "");
                assert!(time.parse::<u64>().is_ok(), "'{time}' is no time in: {line}");
                let mut line = line.to_owned();
                line.replace_range(column.clone(), "       ~");
                lines.push(line);
            }
            _ => lines.push(line.to_owned()),
        }
    }
    lines.join("\n") + "\n"
}
