//! Texts of out-of-memory errors.

use std::path::Path;

use gpuheap_doctor::explain_error;

/// Each text comes with the program that wrote it, and a part of the cause.
#[test]
fn every_text_has_its_cause() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machine/texts");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 15);
    let mut shown = String::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let name = file.file_stem().unwrap().to_str().unwrap();
        let found = explain_error(&text).unwrap_or_else(|| panic!("{name} is not known"));
        let narrow = explain_error(&wrapped(&text)).unwrap_or_else(|| panic!("wrapped {name}"));
        let (cause, evidence) = (&found.cause, &found.evidence);
        assert_eq!((&narrow.cause, &narrow.evidence), (cause, evidence), "wrapped {name}");
        shown.push_str(&format!("== {name}\n{}", found.render(80)));
    }
    insta::assert_snapshot!(shown);
}

/// Puts each word on a line of its own, as the narrowest terminal does.
fn wrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join("\n    ")
}

#[test]
fn other_texts_are_not_explained() {
    for text in ["", "Segmentation fault", "MemoryError", "out of memory: Killed process 7 (java)"]
    {
        assert_eq!(explain_error(text), None, "{text}");
    }
}
