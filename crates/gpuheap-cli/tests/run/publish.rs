//! With `GPUHEAP_PUBLISH=1 gpuheap run`, the recorder publishes the program's live memory.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

use crate::*;

#[test]
fn recorded_program_publishes_live_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(&folder, "holds.c");
    let words = ["--emulate", "16GiB", "--", program.to_str().unwrap()];
    let mut command = gpuheap(&folder, &words);
    command.env("GPUHEAP_PUBLISH", "1").env("XDG_RUNTIME_DIR", folder.path());
    let mut run = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(run.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let uid = folder.path().metadata().unwrap().uid();
    let sockets = || gpuheap_publish::sockets_in(&folder.path().join("gpuheap"), uid).unwrap();
    let found = gpuheap_publish::survey(&sockets(), gpuheap_publish::Detail::All);
    drop(run.stdin.take());
    assert!(run.wait().unwrap().success());
    let [one] = found.as_slice() else { panic!("{found:?}") };
    let status = one.status.as_ref().unwrap();
    let [heap] = status.heaps.as_slice() else { panic!("{one:?}") };
    assert_eq!((status.program.as_str(), heap.pool.as_str()), ("compiled", "recorded"));
    assert_eq!(heap.uuid, "GPU-67707568-6561-702d-656d-750000000000");
    assert_eq!((heap.live, heap.live_peak), (3 * MIB, 4 * MIB));
    // The socket ends with the program.
    assert_eq!(sockets(), []);
}
