//! Devices as Python objects.

use std::hash::{DefaultHasher, Hash, Hasher};

use pyo3::prelude::*;

use crate::failure::{call, call_detached, refused};

/// A device, real or emulated.
///
/// `name` is `"cuda:0"`, a GPU's UUID (`"GPU-01234567-..."`), `"emulated"` (an H200),
/// `"emulated:16GiB"` or `"emulated:t4"`. Without a name, the device is the first real GPU, or an
/// emulated device if there is no GPU. Opening a GPU takes about 0.1 s.
#[pyclass(frozen, module = "gpuheap")]
#[derive(Clone)]
pub(crate) struct Device {
    pub(crate) inner: gpuheap::Device,
}

#[pymethods]
impl Device {
    #[new]
    #[pyo3(signature = (name=None))]
    fn new(py: Python<'_>, name: Option<&str>) -> PyResult<Device> {
        let inner = match name.map(|name| parse_name(name).to_owned()) {
            Some(name) if name.starts_with("GPU-") => open_uuid(py, &name)?,
            Some(name) => call_detached(py, || gpuheap::Device::open(&name))?,
            None => default_device(py)?,
        };
        Ok(Device { inner })
    }

    /// Name of the device. `Device(name)` opens it again.
    #[getter]
    fn name(&self) -> &str {
        self.inner.name()
    }

    /// The driver's number of the device.
    #[getter]
    fn ordinal(&self) -> i32 {
        self.inner.ordinal()
    }

    /// The device's UUID, as `GPU-01234567-89ab-cdef-0123-456789abcdef`.
    #[getter]
    fn uuid(&self) -> String {
        self.inner.describe().uuid
    }

    /// Size of the device's memory in bytes.
    #[getter]
    fn total_memory(&self) -> u64 {
        self.inner.total_memory()
    }

    /// `True` for a device that is emulated inside this process.
    #[getter]
    fn emulated(&self) -> bool {
        self.inner.is_emulated()
    }

    /// Waits until the device has completed all work of this process.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        call_detached(py, || self.inner.synchronize())
    }

    /// Gives the cached memory of this process's heaps on the device back to the driver. Returns
    /// the number of bytes.
    fn flush(&self, py: Python<'_>) -> PyResult<u64> {
        call_detached(py, || self.inner.flush().map(|report| report.given_back()))
    }

    /// Returns whether work on this device can use the memory of heaps of `other`. The first call
    /// enables peer access for good.
    fn _can_reach(&self, py: Python<'_>, other: &Device) -> PyResult<bool> {
        call_detached(py, || self.inner.can_reach(&other.inner))
    }

    /// Two `Device` objects are equal if they refer to the same device. Opening an emulated device
    /// again makes another device.
    fn __eq__(&self, other: &Device) -> bool {
        self.inner.describe() == other.inner.describe()
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.inner.name().hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self) -> String {
        format!("<gpuheap.Device {}>", self.inner.name())
    }
}

/// Opens the GPU with the given UUID. Makes no context on the other devices.
fn open_uuid(py: Python<'_>, uuid: &str) -> PyResult<gpuheap::Device> {
    let found = call_detached(py, gpuheap::Device::list)?;
    match found.iter().find(|device| !device.is_emulated && device.uuid == uuid) {
        Some(device) => call_detached(py, || gpuheap::Device::open(&device.name)),
        None => {
            let visible = found.iter().filter(|device| !device.is_emulated).count();
            let text = format!(
                "no GPU has the UUID {uuid}; this process sees {visible} GPUs, and nvidia-smi -L lists those of the \
                 machine; CUDA_VISIBLE_DEVICES may hide some"
            );
            Err(refused(py, "NoDevice", &text))
        }
    }
}

/// Opens the default device. Warns once if the device is emulated and `GPUHEAP_DEVICE` does not
/// name it.
pub(crate) fn default_device(py: Python<'_>) -> PyResult<gpuheap::Device> {
    let device = call_detached(py, gpuheap::Device::open_default)?;
    if device.is_emulated() && std::env::var_os("GPUHEAP_DEVICE").is_none() {
        let warn = py.import("gpuheap._errors")?.getattr("warn_emulated")?;
        warn.call1((device.name(), device.total_memory()))?;
    }
    Ok(device)
}

/// Returns the name in a line of [`devices`], such as `"cuda:0: NVIDIA H200, ..."`. A name alone is
/// returned unchanged.
pub(crate) fn parse_name(text: &str) -> &str {
    text.split_once(": ").map_or(text, |(name, _)| name)
}

/// Lists the devices that can be opened, each as a line of text. `Heap` and `Device` accept the
/// line, or its first word (`"cuda:0"`).
#[pyfunction]
pub(crate) fn devices(py: Python<'_>) -> PyResult<Vec<String>> {
    let found = call(py, gpuheap::Device::list)?;
    Ok(found.iter().map(ToString::to_string).collect())
}
