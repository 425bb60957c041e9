//! Tests the kernels' names, and the form of their PTX.

use std::collections::BTreeSet;

use gpuheap_kernels::{BLOCK, Kernel};

#[test]
fn names_are_unique_and_parse_back() {
    let all = Kernel::all();
    let names: BTreeSet<String> = all.iter().map(Kernel::name).collect();
    assert_eq!(names.len(), all.len());
    for kernel in all {
        assert_eq!(Kernel::parse(&kernel.name()), Some(kernel));
    }
    for name in [
        "",
        "gpuheap",
        "gpuheap_",
        "gpuheap_copy_3",
        "gpuheap_copy_016",
        "gpuheap_cast_i8",
        "gpuheap_cast_i8_i8_i8",
        "gpuheap_flat_add_bool_array_array",
        "gpuheap_strided_add_f32_scalar_scalar",
        "gpuheap_groups_shared_sum_f32_f32",
        "gpuheap_groups_shared_sum_rows_i8",
        "gpuheap_take_5",
        "gpuheap_rows_sum_i128",
        "add_one",
    ] {
        assert_eq!(Kernel::parse(name), None, "{name}");
    }
}

#[test]
fn every_module_is_well_formed() {
    for kernel in Kernel::all() {
        let (name, text) = (kernel.name(), kernel.ptx());
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some(".version 7.0"));
        let target = lines.next();
        let is_float = name.contains("_f32_") || name.contains("_f64_");
        let adds_doubles = name.contains("_groups_")
            && (name.contains("_sum_") && is_float || name.contains("_squares_"));
        assert_eq!(target, Some(if adds_doubles { ".target sm_60" } else { ".target sm_50" }));
        assert_eq!(lines.next(), Some(".address_size 64"));
        assert_eq!(text.matches(".entry").count(), 1);
        assert!(text.contains(&format!("\n.visible .entry {name}(\n")));
        assert!(text.contains(&format!(".b8 args[{}]", 8 * kernel.words())));
        assert!(text.contains(&format!(".reqntid {BLOCK}, 1, 1\n")));
        assert_eq!(text.matches('{').count(), text.matches('}').count());
        assert!(text.ends_with("    ret;\n}\n") && text.is_ascii());
        check_names(&name, &text);
    }
}

/// Asserts that every register is declared, and that every jump target occurs once.
fn check_names(name: &str, text: &str) {
    for (prefix, declared) in text.lines().filter_map(|line| {
        let (prefix, count) = line.trim().strip_prefix(".reg .")?.split_once('<')?;
        let prefix = prefix.split_once(' ')?.1;
        Some((prefix.to_owned(), count.strip_suffix(">;")?.parse::<usize>().unwrap()))
    }) {
        let used = text.split(&prefix).skip(1).filter_map(|rest| {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<usize>().ok()
        });
        assert!(used.max().is_none_or(|most| most < declared), "{prefix} of {name}");
    }
    for line in text.lines().filter(|line| line.contains("bra ")) {
        let label = line.rsplit(' ').next().unwrap().trim_end_matches(';');
        assert_eq!(text.matches(&format!("\n{label}:\n")).count(), 1, "{label} of {name}");
    }
}
