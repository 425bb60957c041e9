//! W06: memory that Windows did not keep on the card.

use gpuheap_driver::wsl2::USABLE_PERCENT;

use crate::evidence;
use crate::machine::Machine;
use crate::rule::{Finding, Rule, Severity};
use crate::words::{age, count as times};

pub(super) const RULE: Rule = Rule {
    id: "W06",
    severity: Severity::Fail,
    title: "memory that Windows did not keep on the card",
    explanation: "Windows decides what stays on the card. If it cannot keep there what a program needs, a call fails \
                  with \"device not ready\" or \"out of memory\", although memory looks free; or it moves memory to the \
                  host instead, see W04. Plan with 80 % of what is free, as a heap does on its own, and do not use \
                  PyTorch's expandable segments.",
    look,
};

/// Returns a finding if Windows refused to keep a program's memory on the card.
fn look(machine: &Machine) -> Vec<Finding> {
    evidence::logged(machine, "dxgkio_make_resident: Ioctl failed: -12")
        .map(|(count, ago)| {
            RULE.found(
                format!(
                    "Windows refused to keep memory on the card, {}, last {} ago",
                    times(count, "time"),
                    age(ago)
                ),
                format!(
                    "Too little was left on the card; plan with {USABLE_PERCENT} % of what is free."
                ),
                "unset PYTORCH_CUDA_ALLOC_CONF",
            )
        })
        .into_iter()
        .collect()
}
