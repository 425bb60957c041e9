//! Recognises the device files, Windows drives and environment variables that the doctor records.

/// Environment variables that rules read. No other variables are kept, because environments contain
/// secrets.
const VARIABLES: [&str; 13] = [
    "CUDA_VISIBLE_DEVICES",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MODULE_LOADING",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "OLLAMA_KEEP_ALIVE",
    "SLURM_JOB_ID",
    "KUBERNETES_SERVICE_HOST",
    "RAY_JOB_ID",
    "GGML_CUDA_NO_VMM",
];

/// Returns `true` if a rule of `gpuheap doctor` reads the environment variable `name`. Only such
/// variables of a process are stored.
pub(crate) fn is_kept_variable(name: &str) -> bool {
    VARIABLES.contains(&name)
}

/// Returns the Windows drive that contains a file, if WSL2 mounts it: `/mnt/c`.
pub(crate) fn windows_drive(path: &str) -> Option<&str> {
    let letter = path.strip_prefix("/mnt/")?.as_bytes();
    let is_drive =
        letter.first().is_some_and(u8::is_ascii_lowercase) && letter.get(1) == Some(&b'/');
    is_drive.then(|| &path[..6])
}

/// Returns the device file that a path names, in the form `/dev/nvidia0`; `None` for other files.
///
/// Containers mount device files below other folders, such as `/host/dev`. If the file was removed
/// after it was opened, its path ends with ` (deleted)`.
pub(crate) fn device(path: &str) -> Option<String> {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let (folder, name) = path.rsplit_once('/')?;
    let is_folder_of_devices = folder == "/dev" || folder.ends_with("/dev");
    let is_known = ["dxg", "nvidiactl", "nvidia-uvm"].contains(&name)
        || name.strip_prefix("nvidia").is_some_and(|number| number.parse::<u32>().is_ok());
    (is_folder_of_devices && is_known).then(|| format!("/dev/{name}"))
}

/// Returns the device file that a path names, if the file belongs to one GPU.
pub(crate) fn numbered_device(path: &str) -> Option<String> {
    device(path).filter(|file| file.ends_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_file_is_known_when_moved() {
        for (path, file) in [
            ("/dev/nvidia0", Some("/dev/nvidia0")),
            ("/host/dev/nvidia12", Some("/dev/nvidia12")),
            ("/dev/nvidiactl (deleted)", Some("/dev/nvidiactl")),
            ("/dev/nvidia-uvm", Some("/dev/nvidia-uvm")),
            ("/dev/nvidia-uvm-tools", None),
            ("/dev/nvidia-caps/nvidia-cap1", None),
            ("/home/ann/nvidia0", None),
            ("nvidia0", None),
        ] {
            assert_eq!(device(path).as_deref(), file, "{path}");
        }
    }
}
