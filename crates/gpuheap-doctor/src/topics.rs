//! Explains memory terms of Windows, settings of WSL2 and RAPIDS, with sizes of the user's machine.

use gpuheap_driver::wsl2::USABLE_PERCENT;
use gpuheap_text::{Amount, hanging, mib};
use serde::Serialize;

use crate::machine::{Machine, Windows};

/// Names of the topics.
pub const TOPICS: [&str; 3] = ["dedicated", "wslconfig", "rapids"];

/// Explanation of a topic, with the sizes of the user's machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Topic {
    /// Name of the topic.
    pub topic: &'static str,
    /// The explanation, in lines.
    pub text: String,
}

impl Topic {
    /// Explains a topic for `width` columns. Returns `None` unless the topic is one of these:
    ///
    /// * `dedicated`: Windows' "Dedicated" and "Shared GPU memory".
    /// * `wslconfig`: a fragment of `.wslconfig` with numbers for the host.
    /// * `rapids`: limits and settings of RAPIDS' pools for the devices.
    pub fn explain(name: &str, machine: &Machine, width: usize) -> Option<Topic> {
        let topic = TOPICS.into_iter().find(|topic| topic.eq_ignore_ascii_case(name))?;
        let mut text = Text { text: String::new(), width };
        match topic {
            "dedicated" => dedicated(&mut text, machine),
            "wslconfig" => wslconfig(&mut text, machine),
            _ => rapids(&mut text, machine),
        }
        Some(Topic { topic, text: text.text })
    }

    /// Renders the explanation as JSON that `docs/explain.schema.json` describes.
    pub fn to_json(&self) -> String {
        crate::json(self)
    }
}

/// Text that is built from paragraphs and lines to copy.
struct Text {
    text: String,
    width: usize,
}

impl Text {
    fn paragraph(&mut self, words: &str) {
        hanging(&mut self.text, "", "", words, self.width);
    }

    fn bullet(&mut self, words: &str) {
        hanging(&mut self.text, "* ", "  ", words, self.width);
    }

    /// Adds a line for the user to copy, such as a setting. Does not wrap the line at `width`.
    fn code(&mut self, line: &str) {
        self.text.push_str(format!("    {line}").trim_end());
        self.text.push('\n');
    }
}

fn dedicated(text: &mut Text, machine: &Machine) {
    text.paragraph(
        "Windows' Task Manager has two figures for a GPU. \"Dedicated GPU memory\" is memory of the \
         card: the used memory of gpuheap status, by all programs of Windows and of WSL2. \"Shared GPU \
         memory\" is memory of the host that the GPU may use.",
    );
    text.paragraph(
        "When a program spills, \"Shared GPU memory\" grows, while \"Dedicated GPU memory\" stays \
         near its limit: Windows moves memory that does not fit to the host, and each access goes \
         through PCIe. Windows may also refuse the request. Which of the two happens is not \
         announced. Pinned memory counts as shared too. All of WSL2 is one row, \
         vmmem. Memory that does not clear is dedicated memory of a program that still runs, or of \
         vmmem after its programs have ended; then wsl.exe --shutdown returns it.",
    );
    match &machine.windows {
        Some(windows) => {
            let (dedicated, shared) = windows.wsl_memory();
            text.paragraph("Here, now:");
            text.code(&format!(
                "Dedicated GPU memory {:>11}, of that WSL2 {}",
                mib(windows.dedicated),
                mib(dedicated)
            ));
            text.code(&format!(
                "Shared GPU memory    {:>11}, of that WSL2 {}",
                mib(windows.shared),
                mib(shared)
            ));
        }
        None if machine.host.is_wsl => {
            text.paragraph("Windows gave no figures; its Task Manager shows them.");
        }
        None => text.paragraph("This machine is not WSL2; it has no such figures."),
    }
}

/// Bytes of a GB in `.wslconfig`.
const GB: u64 = 1 << 30;

fn wslconfig(text: &mut Text, machine: &Machine) {
    let windows = machine.windows.as_ref();
    let host = &machine.host;
    let (memory, is_known) = match windows.and_then(|windows| windows.memory) {
        Some(memory) => (memory, true),
        // By default, WSL2 gets half of the host's memory.
        None if host.is_wsl => (host.memory.saturating_mul(2), false),
        None => (host.memory, true),
    };
    if !host.is_wsl {
        text.paragraph("This machine is not WSL2; the numbers are those that WSL2 would get here.");
    }
    let certainty =
        if is_known { "" } else { " (estimated: twice the memory of WSL2, by its default)" };
    text.paragraph(&format!(
        "Windows has {} of memory{certainty}; Linux sees {}, and {} of swap.",
        Amount(memory),
        Amount(host.memory),
        Amount(host.swap)
    ));
    let limits = Limits::for_host(memory);
    text.paragraph("In %UserProfile%\\.wslconfig, which leaves Windows a quarter, at least 4 GB:");
    text.code("[wsl2]");
    text.code(&format!("memory={}GB", limits.memory / GB));
    text.code(&format!("swap={}GB", limits.swap / GB));
    text.code("");
    text.code("[experimental]");
    text.code("autoMemoryReclaim=gradual");
    let set: Vec<&str> = windows.map(memory_settings).unwrap_or_default();
    if !set.is_empty() {
        text.paragraph(&format!("It has now: {}.", set.join(", ")));
    }
    text.paragraph("Then, in Windows or here; it ends every program of WSL2:");
    text.code("wsl.exe --shutdown");
    text.paragraph(
        "It is memory of the host: programs that end with \"Killed\", pandas and spilling need it. \
         The memory of the card does not change.",
    );
}

/// Returns the settings of a `.wslconfig` that concern memory or the GPU.
fn memory_settings(windows: &Windows) -> Vec<&str> {
    const KEYS: [&str; 5] = ["memory", "swap", "gpusupport", "safemode", "automemoryreclaim"];
    let is_known = |line: &&str| {
        let key = line.split('=').next().unwrap_or_default().trim().to_ascii_lowercase();
        KEYS.contains(&key.as_str())
    };
    windows.wslconfig.iter().map(|line| line.trim()).filter(is_known).collect()
}

/// Sizes for `.wslconfig`, in whole GB.
#[derive(Debug, PartialEq, Eq)]
struct Limits {
    memory: u64,
    swap: u64,
}

impl Limits {
    /// Returns limits for a host. The memory limit is three quarters of the host's memory, leaves
    /// at least 4 GB to Windows, and is at least 1 GB. The swap is half of the limit, but at least
    /// 8 GB.
    fn for_host(host: u64) -> Limits {
        let left = (host / 4).max(4 * GB);
        let memory = (host.saturating_sub(left) / GB).max(1);
        let swap = if memory < 16 { 8 } else { memory / 2 };
        Limits { memory: memory.saturating_mul(GB), swap: swap.saturating_mul(GB) }
    }
}

/// Granularity of pool sizes. RMM and drivers accept it.
const STEP: u64 = 256 << 20;

fn rapids(text: &mut Text, machine: &Machine) {
    let is_wsl = machine.host.is_wsl;
    let percent = if is_wsl { USABLE_PERCENT } else { 90 };
    if is_wsl {
        text.paragraph("Limits of RAPIDS under WSL2:");
        text.bullet("One GPU, of compute capability 7.0 or later; no GPUDirect Storage.");
        text.bullet(
            "No managed memory: it cannot be larger than the card, and the first prefetch fails \
             with \"invalid device ordinal\". So no managed_memory=True and no managed pool.",
        );
        text.bullet(
            "Pinned memory is refused from 0.5 to 1 GiB in all; keep pinned pools below 0.5 GiB.",
        );
        text.bullet(&format!(
            "Windows may refuse memory that looks free, or move it to the host: plan with \
             {USABLE_PERCENT} % of the free memory."
        ));
        text.bullet("The driver's own pool only without exchange between processes (IPC).");
        text.bullet("Spilling goes into the memory of WSL2: see gpuheap explain wslconfig.");
    } else {
        text.paragraph("This is not WSL2: managed memory and several GPUs may be used.");
    }
    if machine.devices().is_empty() {
        text.paragraph("No GPU answers here, so that there are no numbers.");
    }
    for gpu in machine.devices().iter().filter(|gpu| gpu.failure.is_none()) {
        let most = gpu.free / 100 * percent / STEP * STEP;
        text.paragraph(&format!(
            "GPU {} has {} free of {}. {percent} % of that, {}, is the most that a pool should \
             take, and a quarter of it a good start:",
            gpu.index,
            mib(gpu.free),
            mib(gpu.total),
            mib(most)
        ));
        if most == 0 {
            text.paragraph("That is too little for a pool; see gpuheap status for who has it.");
            continue;
        }
        let first = (most / 4 / STEP * STEP).max(STEP.min(most));
        text.code("import rmm");
        text.code("rmm.reinitialize(pool_allocator=True, managed_memory=False,");
        text.code(&format!("    initial_pool_size={first}, maximum_pool_size={most})"));
        if is_wsl {
            text.code("# or, for cudf.pandas, before it starts:");
            text.code("export CUDF_PANDAS_RMM_MODE=pool");
        }
        text.code("# tables that do not fit go to the host:");
        text.code(&format!(
            "export CUDF_SPILL=on CUDF_SPILL_DEVICE_LIMIT={}",
            most / 5 * 4 / STEP * STEP
        ));
    }
    let spill = machine.host.available / 2 / GB * GB;
    text.paragraph(&format!(
        "The host has {} available; let no more than {} of tables spill into it.",
        Amount(machine.host.available),
        Amount(spill)
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_keeps_quarter_or_four_gb() {
        let limits = |host: u64| {
            let limits = Limits::for_host(host * GB);
            (limits.memory / GB, limits.swap / GB)
        };
        assert_eq!(limits(64), (48, 24));
        assert_eq!(limits(16), (12, 8));
        assert_eq!(limits(8), (4, 8));
        assert_eq!((limits(2), limits(0)), ((1, 8), (1, 8)));
    }
}
