//! Tests that gaps of recordings are reported: snapshots of other releases, snapshots that began
//! late, and snapshots for which the model takes other segments than PyTorch took.

use gpuheap_replay::models::torch::Settings;
use gpuheap_replay::{Gap, Program};

use crate::programs::{POOLS_UNKNOWN, recorded};
use crate::{H200, RECORDED, data, program, read_program};

fn odd(name: &str) -> Program {
    let path = data(&format!("tests/data/torch-odd/{name}.pickle"));
    read_program(path)
}

fn texts(name: &str) -> Vec<String> {
    odd(name).gaps(None, H200).iter().map(Gap::to_string).collect()
}

#[test]
fn complete_recordings_have_no_gaps() {
    for (name, fraction, peak) in RECORDED {
        let program = program(name);
        let found = program.reproduction(fraction, H200).unwrap();
        assert!(found.is_exact(), "{name}: {found:?}");
        assert_eq!((found.recorded_peak, found.modelled_peak), (peak, peak), "{name}");
        let gaps = program.gaps(fraction, H200);
        let is_late = |gap: &Gap| matches!(gap, Gap::Beginning { .. });
        assert!(gaps.iter().all(is_late), "{name}: {gaps:?}");
        assert_eq!(program.recorded_version().unwrap().to_string(), "2.11", "{name}");
    }
}

#[test]
fn older_snapshot_reports_assumed_rules() {
    assert_eq!(odd("older").recorded_version().unwrap().to_string(), "2.10");
    assert_eq!(
        texts("older"),
        [
            "the snapshot has no allocator_settings: PyTorch's defaults are assumed. If the \
             program set PYTORCH_CUDA_ALLOC_CONF, give its text: --pool torch:TEXT",
            "the snapshot is of an older PyTorch than 2.11, or of another program: it lacks \
             allocator_settings, external_annotations, segments[].segment_pool_id and 3 more. \
             Requests are known; rules of PyTorch 2.10 are used, which no recording was compared \
             with. --pool torch:version:2.N chooses others",
        ]
    );
}

#[test]
fn named_ended_pool_stays_private() {
    // The common pool has 50 MiB. The private pool has 20 MiB that no other request may use.
    let found = odd("ended_pool").reproduction(None, H200).unwrap();
    assert_eq!((found.recorded_peak, found.modelled_peak), (70 << 20, 70 << 20));
}

#[test]
fn newer_snapshot_gets_newer_rules() {
    let program = odd("newer");
    assert_eq!(program.recorded_settings().unwrap().to_string(), "version:2.14");
    assert_eq!(
        texts("newer"),
        ["the snapshot is of a newer PyTorch than 2.11, or of another program: it has \
          host_segments, host_traces, allocator_settings.some_setting. Requests are known; rules \
          of PyTorch 2.14 are used, which no recording was compared with. --pool \
          torch:version:2.N chooses others"]
    );
}

#[test]
fn snapshot_without_segments_is_a_gap() {
    let program = odd("no_segments");
    assert_eq!(program.reproduction(None, H200), None);
    assert_eq!(
        texts("no_segments"),
        [
            "the snapshot has no segments: what PyTorch reserved is not known, what it would reserve \
          follows from the requests"
        ]
    );
    let peak = program.torch_peak(&Settings::default(), H200);
    assert_eq!((peak.low, peak.high), (30 << 20, 30 << 20));
}

#[test]
fn late_recording_names_earlier_live_blocks() {
    let program = odd("late");
    assert_eq!(program.live_before(), (1, 30 << 20));
    assert_eq!((program.reserved_before(), program.recorded_peak()), (30 << 20, 50 << 20));
    assert_eq!(
        texts("late"),
        ["1 block (30 MiB) was live before the first event: the recording began late, or its \
          buffer (max_entries) was full. Peaks are those of the recorded part; earlier ones are \
          not known"]
    );
}

#[test]
fn collection_without_fraction_is_a_gap() {
    let wanted = "garbage_collection_threshold is a part of the memory fraction, which no snapshot \
                  has: without it nothing is collected. Give it: --pool \
                  torch:garbage_collection_threshold:0.6,per_process_memory_fraction:0.9";
    assert_eq!(texts("collected"), [wanted]);
    assert_eq!(odd("collected").gaps(Some(0.9), H200), []);
}

/// Snapshots do not contain calls of `empty_cache`. Such calls are inferred from the segments that
/// PyTorch gave back.
#[test]
fn emptied_cache_empties_the_model() {
    let program = odd("emptied");
    let found = program.reproduction(None, H200).unwrap();
    assert!(found.is_exact(), "{found:?}");
    assert_eq!((found.recorded, found.recorded_peak), (6, 80 << 20));
    // Under settings other than the recorded ones, the model still empties its cache at the
    // recorded steps. The peak is 30 + 50 MiB, without the 40 MiB that were given back.
    let peak = program.torch_peak(&"max_split_size_mb:512".parse().unwrap(), H200);
    assert_eq!((peak.low, peak.high), (80 << 20, 80 << 20));
}

/// If the private pool of a graph or a `MemPool` ended before the snapshot, the snapshot does not
/// show the pool's segments. Then the model differs, and its error is reported as a gap.
#[test]
fn ended_pools_report_the_error() {
    for (name, settings, peak) in recorded() {
        let path = data(&format!("tests/data/torch-programs/{name}.pickle.gz"));
        let program = read_program(path);
        let found = program.reproduction(None, H200).unwrap();
        assert_eq!(found.recorded_peak, peak, "{name}");
        let own = program.torch_peak(&settings.parse().unwrap(), H200);
        assert_eq!((own.low, own.high), (peak, peak), "{name}");
        assert_eq!(found.is_exact(), !POOLS_UNKNOWN.contains(&&*name), "{name}: {found:?}");
        if found.is_exact() {
            continue;
        }
        let gaps = program.gaps(None, H200);
        assert_eq!(gaps, [Gap::Inexact(found)], "{name}");
        let percent = format!("({:+.1} %)", 100.0 * found.error());
        assert!(gaps[0].to_string().contains(&percent), "{name}: {}", gaps[0]);
        // Under other settings, the peak is a range. It is as wide as the model's error under the
        // recorded settings.
        let other = program.torch_peak(&"max_split_size_mb:64".parse().unwrap(), H200);
        let width = (other.high - other.low) as f64 / other.high as f64;
        assert!(width >= found.error().abs() * 0.9, "{name}: {other:?}, {found:?}");
    }
}
