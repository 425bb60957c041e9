//! Tests `gpuheap run --copies`, which reports copied bytes by direction, memory and line.

use gpuheap_report::{At, CopySite, Report};

use crate::*;

#[test]
fn copies_of_killed_program_are_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(&folder, "copies.c");
    let output = tempfile::tempdir().unwrap();
    let words = ["--", program.to_str().unwrap(), "killed"];
    let run = Run { ran: command(&output, &["--copies"], &words), folder: output };
    let report = Report::new(&run.traces()[0], At::Peak).unwrap();
    let mut rows: Vec<_> = report.copies.iter().map(|row| (row.count, row.bytes)).collect();
    rows.sort();
    assert_eq!(rows, [(1, 10), (3, 3000)], "{}", run.ran.stderr);
}

/// The emulated driver does not support these functions, so the program uses a small driver in C.
#[test]
fn volumes_and_arrays_are_copied() {
    let run = with_other_driver(&["--copies"], &["copies"]);
    assert_eq!(run.ran.code, 0, "{}", run.ran.stderr);
    let report = Report::new(&run.traces()[0], At::Peak).unwrap();
    let row = |row: &CopySite| (row.direction.as_str(), row.bytes);
    let mut rows: Vec<_> = report.copies.iter().map(row).collect();
    rows.sort();
    let expected = [
        ("in device", 15),
        ("in device", 16),
        ("in device", 17),
        ("in device", 128),
        ("in device", 128),
        ("to device", 11),
        ("to device", 13),
        ("to device", 128),
        ("to host", 12),
        ("to host", 14),
        ("to host", 128),
    ];
    assert_eq!(rows, expected);
}

#[test]
fn copies_are_recorded_by_line() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(&folder, "copies.c");
    let output = tempfile::tempdir().unwrap();
    let words = ["--", program.to_str().unwrap()];
    let run = Run { ran: command(&output, &["--copies"], &words), folder: output };
    assert_eq!((run.ran.code, &*run.ran.stdout), (0, "refused: 1\n"), "{}", run.ran.stderr);
    let row = |row: &CopySite| {
        let site = row.site.rsplit_once(" in ").unwrap().1.to_owned();
        let (direction, memory) = (row.direction.as_str(), row.memory.as_str());
        (direction, memory, site, row.count, row.bytes, row.repeated_bytes)
    };
    let report = Report::new(&run.traces()[0], At::Peak).unwrap();
    let mut rows: Vec<_> = report.copies.iter().map(row).collect();
    rows.sort();
    let expected = [
        ("in device", "none", "main", 1, 7, 0),
        ("in device", "none", "main", 1, 3 * MIB, 0),
        ("in device", "none", "shapes", 1, 50, 0),
        ("in device", "none", "shapes", 1, 60, 0),
        ("in device", "none", "shapes", 1, 1000, 0),
        ("to device", "managed", "upload", 4, 4000, 0),
        ("to device", "pageable", "main", 1, 100, 0),
        ("to device", "pageable", "shapes", 2, 2000, 0),
        ("to device", "pageable", "upload", 6, 12 * MIB, 4 * MIB),
        ("to device", "pinned", "main", 1, 1000, 0),
        ("to host", "pinned", "shapes", 1, 1000, 0),
        ("to host", "registered", "main", 1, 4096, 0),
    ];
    let expected = expected.map(|(direction, memory, site, count, bytes, again)| {
        (direction, memory, site.to_owned(), count, bytes, again)
    });
    assert_eq!(rows, expected);
    let stderr = &run.ran.stderr;
    assert!(stderr.contains("12.01 MiB to device, 12 MiB pageable, 4 MiB again"), "{stderr}");
    let text = gpuheap_report::text::render(&report);
    assert!(text.contains("4 MiB were uploaded again by a line"), "{text}");
    let without = Run::of(&["linked", "leak"]);
    assert!(!without.ran.stderr.contains("copies"), "{}", without.ran.stderr);
}
