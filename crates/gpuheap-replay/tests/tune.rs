//! Tests the search for settings, with traces of real programs.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use gpuheap_replay::models::build;
use gpuheap_replay::tune::{Budget, Candidate, Family, search};
use gpuheap_replay::{Program, cards};
use gpuheap_trace::{ReadOptions, read};

fn program(path: &str) -> Program {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    Program::from_trace(&read(path, &ReadOptions::default()).unwrap()[0])
}

const VARIED: &str = "tests/data/torch-settings/varied_default.pickle.gz";
const SERVING: &str = "../../examples/traces/serve_threads.csv.gz";
const DEVICE: u64 = 80 << 30;

fn found(program: &Program, family: Family, budget: &Budget) -> Vec<Candidate> {
    search(program, family, budget, |_, _| {})
}

#[test]
fn front_has_figures_of_its_models() {
    let program = program(SERVING);
    for family in [Family::Torch, Family::Rmm, Family::CuPy] {
        let front = found(&program, family, &Budget::new(DEVICE));
        assert!(front.len() >= 2, "{front:?}");
        for pair in front.windows(2) {
            assert!(pair[0].reserved_peak < pair[1].reserved_peak, "{pair:?}");
            assert!(pair[0].driver_calls > pair[1].driver_calls, "{pair:?}");
        }
        for one in &front {
            assert!(!one.fails, "{one:?}");
            let outcome = program.run(&mut *build(&one.model, DEVICE).unwrap());
            let Candidate { reserved_peak, driver_calls, .. } = *one;
            let figures = outcome.figures;
            assert_eq!(
                (figures.peak_reserved, figures.driver_calls),
                (reserved_peak, driver_calls)
            );
        }
    }
}

#[test]
fn front_begins_with_least_recorded_peak() {
    let program = program(VARIED);
    let front = found(&program, Family::Torch, &Budget::new(DEVICE));
    // The lowest peak of the five settings that were recorded on a GPU.
    assert!(front[0].reserved_peak <= 7_226_785_792, "{front:?}");
    assert!(front[0].setting.starts_with("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"));
    let mut budget = Budget::new(DEVICE);
    budget.vmm = false;
    let front = found(&program, Family::Torch, &budget);
    assert!(front.iter().all(|one| !one.setting.contains("expandable")), "{front:?}");
    assert!(front[0].reserved_peak > 7_226_785_792, "{front:?}");
}

#[test]
fn failing_settings_are_left_out() {
    let program = program(VARIED);
    let front = found(&program, Family::Torch, &Budget::new(7400 << 20));
    assert!(front.iter().all(|one| !one.fails && one.setting.contains("expandable")), "{front:?}");
    let front = found(&program, Family::Torch, &Budget::new(1 << 30));
    assert_eq!(front.len(), 1);
    assert!(front[0].fails && front[0].reserved_peak <= 1 << 30, "{front:?}");
    let card = cards::find("RTX 4060").unwrap();
    let budget = Budget::for_card(card);
    assert_eq!((budget.device_memory, budget.usable_memory), (card.total_bytes, card.usable_bytes));
    assert!(found(&program, Family::Torch, &budget).iter().all(|one| !one.fails));
}

#[test]
fn budget_bounds_counted_progress() {
    let program = program(SERVING);
    let seen = Mutex::new(Vec::new());
    search(&program, Family::Torch, &Budget::new(DEVICE), |done, of| {
        seen.lock().unwrap().push((done, of));
    });
    let mut seen = seen.into_inner().unwrap();
    seen.sort_unstable();
    let of = seen[0].1;
    assert!(of >= 24, "{of}");
    assert_eq!(seen, (1..=of).map(|done| (done, of)).collect::<Vec<_>>());
    let mut budget = Budget::new(DEVICE);
    budget.time = Duration::ZERO;
    let front = found(&program, Family::Torch, &budget);
    assert_eq!(front.len(), 1, "{front:?}");
    assert_eq!(front[0].setting, "unset PYTORCH_CUDA_ALLOC_CONF");
    let mut budget = Budget::new(DEVICE);
    budget.steps = 3 * program.len();
    let tried = Mutex::new(0);
    search(&program, Family::Torch, &budget, |_, of| *tried.lock().unwrap() = of);
    assert_eq!(tried.into_inner().unwrap(), 3);
}
