//! Results of probing CUDA in a separate process.

use gpuheap_text::cut;
use serde::{Deserialize, Serialize};

use super::nvml::Gpu;

/// Subjects of a device's probes, in the order in which the probes run.
pub const PROBES: [&str; 4] = ["context", "virtual memory", "pool", "managed memory"];

/// One probe of CUDA.
///
/// The probing process writes each probe as JSON: one line when the probe starts, and one line when
/// the probe is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaProbe {
    /// NVML's index of the device with this UUID; `None` if NVML lists no such device. The probing
    /// process does not write the index: the doctor adds it when it reads the probe's line.
    #[serde(default)]
    pub gpu: Option<u32>,
    /// The device's UUID, as NVML writes it; `None` for a probe of the driver or of the host.
    #[serde(default)]
    pub uuid: Option<String>,
    /// The probe's subject: one of [`PROBES`], `driver` or `pinned memory`.
    pub probe: String,
    /// How the probe ended.
    pub outcome: Outcome,
    /// Bytes that the probe measured; `None` if it measures no bytes.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// The result in words, or the reason why the result is missing.
    #[serde(default)]
    pub text: String,
}

/// Outcomes of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The probe began. Reports do not contain this outcome.
    Started,
    /// The probe has its result.
    Ok,
    /// The driver refused, did not answer in time, or ended the process.
    Failed,
    /// The probe was left out.
    Skipped,
}

impl CudaProbe {
    /// Creates a probe without bytes.
    pub fn new(
        uuid: Option<&str>,
        probe: &str,
        outcome: Outcome,
        text: impl Into<String>,
    ) -> CudaProbe {
        let (uuid, probe) = (uuid.map(str::to_owned), probe.to_owned());
        CudaProbe { gpu: None, uuid, probe, outcome, bytes: None, text: text.into() }
    }

    /// Returns the probe as one line of JSON, with its line end.
    pub fn to_line(&self) -> String {
        // Numbers and texts are always JSON.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }

    /// Returns the probe's subject with its device: `pool of GPU 0`.
    pub(crate) fn name(&self) -> String {
        match (self.gpu, &self.uuid) {
            (Some(gpu), _) => format!("{} of GPU {gpu}", self.probe),
            (None, Some(uuid)) => format!("{} of {}", self.probe, cut(uuid, 12)),
            (None, None) => self.probe.clone(),
        }
    }

    /// Returns the result in words.
    pub(crate) fn result(&self) -> String {
        match self.outcome {
            Outcome::Ok | Outcome::Started => self.text.clone(),
            Outcome::Failed => format!("failed: {}", self.text),
            Outcome::Skipped => format!("skipped: {}", self.text),
        }
    }
}

/// Name of the line that reports the end of the probing process.
const END: &str = "end";

/// Returns the line that follows a probing process's lines, and reports how the process ended.
pub(crate) fn end_line(failure: Option<&str>) -> String {
    let outcome = if failure.is_some() { Outcome::Failed } else { Outcome::Ok };
    CudaProbe::new(None, END, outcome, failure.unwrap_or_default()).to_line()
}

/// Reads the lines of a probing process. Ignores other lines.
///
/// If a probe began and did not end, it failed because the process ended. Then the other probes of
/// that device are skipped.
pub(crate) fn parse_probes(text: &str, devices: &[Gpu]) -> Vec<CudaProbe> {
    let mut probes: Vec<CudaProbe> = Vec::new();
    let mut running: Option<CudaProbe> = None;
    for line in text.lines() {
        let Ok(line) = serde_json::from_str::<CudaProbe>(line) else { continue };
        match line.outcome {
            Outcome::Started => running = Some(line),
            Outcome::Failed if line.probe == END => {
                let failed = running.take().unwrap_or_else(|| {
                    CudaProbe::new(None, "driver", Outcome::Started, String::new())
                });
                let device = failed.uuid.clone();
                let place = PROBES.iter().position(|name| *name == failed.probe);
                probes.push(CudaProbe { outcome: Outcome::Failed, text: line.text, ..failed });
                let (Some(device), Some(place)) = (device, place) else { continue };
                let reason = format!("the probe \"{}\" did not end", PROBES[place]);
                probes.extend(PROBES[place + 1..].iter().map(|name| {
                    CudaProbe::new(Some(&device), name, Outcome::Skipped, reason.clone())
                }));
            }
            _ if line.probe == END => {}
            _ => {
                running = None;
                probes.push(line);
            }
        }
    }
    for probe in &mut probes {
        let device = devices.iter().find(|gpu| Some(&gpu.uuid) == probe.uuid.as_ref());
        probe.gpu = device.map(|gpu| gpu.index);
    }
    probes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(probe: &str, outcome: Outcome) -> String {
        CudaProbe::new(Some("GPU-1"), probe, outcome, "").to_line()
    }

    #[test]
    fn hanging_probe_skips_later_probes() {
        let text = line("context", Outcome::Started)
            + &line("context", Outcome::Ok)
            + &line("virtual memory", Outcome::Started)
            + "cut off {\n"
            + &end_line(Some("no answer within 30 s"));
        let probes = parse_probes(&text, &[]);
        let outcomes: Vec<_> = probes.iter().map(|one| (one.probe.as_str(), one.outcome)).collect();
        let wanted = [
            ("context", Outcome::Ok),
            ("virtual memory", Outcome::Failed),
            ("pool", Outcome::Skipped),
            ("managed memory", Outcome::Skipped),
        ];
        assert_eq!(outcomes, wanted);
        assert_eq!(probes[1].text, "no answer within 30 s");
        assert!(probes[2].text.contains("virtual memory"), "{probes:?}");
    }

    #[test]
    fn early_end_is_failed_driver() {
        let probes = parse_probes(&end_line(Some("signal: 11 (SIGSEGV)")), &[]);
        assert_eq!(
            probes,
            [CudaProbe::new(None, "driver", Outcome::Failed, "signal: 11 (SIGSEGV)")]
        );
        assert_eq!(parse_probes(&end_line(None), &[]), []);
    }
}
