//! Tests the explanations of out-of-memory errors.

use std::path::Path;

use gpuheap_doctor::explain_error;

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
        let found = explain_error(&text, None).unwrap_or_else(|| panic!("{name} is not known"));
        let narrow =
            explain_error(&wrapped(&text), None).unwrap_or_else(|| panic!("wrapped {name}"));
        let (cause, evidence) = (&found.cause, &found.evidence);
        assert_eq!((&narrow.cause, &narrow.evidence), (cause, evidence), "wrapped {name}");
        let is_command = |line: &&str| line.trim_start().starts_with("guide: ");
        let rendered = found.render(80);
        for line in rendered.lines().filter(|line| !is_command(line)) {
            assert!(line.chars().count() <= 80, "{name}: {line}");
        }
        shown.push_str(&format!("== {name}\n{}", found.render(80)));
    }
    insta::assert_snapshot!(shown);
}

/// Puts each word on a separate line, as the narrowest terminal does.
fn wrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join("\n    ")
}

#[test]
fn other_texts_are_not_explained() {
    for text in ["", "Segmentation fault", "MemoryError", "killed two birds"] {
        assert_eq!(explain_error(text, None), None, "{text}");
    }
}

fn error_text(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machine/texts");
    std::fs::read_to_string(folder.join(format!("{name}.txt"))).unwrap()
}

#[test]
fn rmm_error_under_wsl2_names_windows() {
    let text = error_text("rmm_cuda_line");
    let windows = explain_error(&text, Some(true)).unwrap();
    for word in ["Windows refused", "pinned", "half of the card", "wsl2.md", "explain rapids"] {
        assert!(windows.render(200).contains(word), "{word}: {windows:#?}");
    }
    assert_eq!(explain_error(&error_text("rmm_cuda_wsl2"), None).unwrap().cause, windows.cause);
    let linux = explain_error(&error_text("rmm_cuda_wsl2"), Some(false)).unwrap();
    assert!(!linux.render(200).contains("Windows"), "{linux:#?}");
    assert_eq!(linux.guide, None);
    // The remedies are in order of cost: show the memory, free it, spill, use slower memory, and
    // use a larger card.
    let order = ["gpuheap status", "gc.collect", "CUDF_SPILL", "managed_memory", "--find-minimum"];
    let all: Vec<&String> = [&linux.fix].into_iter().chain(&linux.alternatives).collect();
    assert_eq!(all.len(), order.len());
    assert!(all.iter().zip(order).all(|(text, word)| text.contains(word)), "{all:#?}");
}

#[test]
fn full_device_under_wsl2_names_windows() {
    for name in ["bare_driver", "cudarc", "cupy_full", "jax_short", "julia", "numba", "pycuda_full"]
    {
        let found = explain_error(&error_text(name), Some(true)).unwrap().render(80);
        assert!(found.contains("gpuheap free") && found.contains("wsl2.md"), "{found}");
        let linux = explain_error(&error_text(name), Some(false)).unwrap().render(80);
        assert!(!linux.contains("Windows"), "{linux}");
    }
}

#[test]
fn wsl2_advice_omits_expandable_segments() {
    for name in ["torch_pieces", "torch_1"] {
        let text = error_text(name);
        assert!(explain_error(&text, None).unwrap().fix.contains("expandable_segments:True"));
        let windows = explain_error(&text, Some(true)).unwrap().render(80);
        assert!(!windows.contains("expandable_segments:True"), "{windows}");
    }
}

#[test]
fn other_error_is_not_about_memory() {
    for (name, part) in [("not_ready", "no lack of memory"), ("ordinal", "no lack of memory")] {
        let found = explain_error(&error_text(name), None).unwrap();
        assert!(found.cause.contains(part), "{found:#?}");
        assert!(found.notes[0].contains("--profile wsl2-rtx4060"), "{found:#?}");
        assert!(
            explain_error(&error_text(name), Some(true)).unwrap().cause.contains("Windows"),
            "{name}"
        );
    }
}

#[test]
fn host_errors_exclude_gpu_memory() {
    for name in ["numpy", "killed", "killed_kernel", "host_bad_alloc", "dask_nanny"] {
        let found = explain_error(&error_text(name), None).unwrap();
        assert!(found.cause.contains("not memory of the GPU"), "{name}: {found:#?}");
        assert!(!found.render(80).contains("wslconfig"), "{name}: {found:#?}");
        let windows = explain_error(&error_text(name), Some(true)).unwrap().render(80);
        assert!(windows.contains("gpuheap explain wslconfig"), "{name}: {windows}");
    }
}

#[test]
fn figures_are_exact_or_marked_rounded() {
    let bytes = |name: &str, figure: &str| {
        let found = explain_error(&error_text(name), None).unwrap();
        let value = found.evidence.iter().find(|(key, _)| *key == figure).unwrap().1;
        (value, found.is_rounded)
    };
    assert_eq!(bytes("numpy", "requested"), (12_800_000_000, false));
    assert_eq!(bytes("numpy_huge", "requested"), (8 << 60, true));
    assert_eq!(bytes("dask_nanny", "share of the worker"), (7_260_000_000, true));
    assert_eq!(bytes("killed_kernel", "memory of the process"), (15 << 30, false));
    assert_eq!(bytes("gpuheap_figures", "requested"), (100_000_000, false));
    assert_eq!(bytes("gpuheap", "live"), (500 << 20, true));
    assert_eq!(bytes("gpuheap", "limit"), (768 << 20, true));
}
