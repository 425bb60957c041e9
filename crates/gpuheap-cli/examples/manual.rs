//! Writes the man pages of the `gpuheap` command, and its completions for bash, zsh and fish, into
//! a folder with the layout of `/usr/share`:
//!
//!     cargo run -p gpuheap-cli --example manual -- FOLDER

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use clap_complete::Shell;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).ok_or("the folder to write into is missing")?;
    let folder = PathBuf::from(folder);
    let pages = folder.join("man/man1");
    fs::create_dir_all(&pages)?;
    clap_mangen::generate_to(gpuheap_cli::command(), &pages)?;
    for (shell, place) in [
        (Shell::Bash, "bash-completion/completions/gpuheap"),
        (Shell::Zsh, "zsh/vendor-completions/_gpuheap"),
        (Shell::Fish, "fish/vendor_completions.d/gpuheap.fish"),
    ] {
        let file = folder.join(place);
        fs::create_dir_all(file.parent().ok_or("the folder is the root")?)?;
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut gpuheap_cli::command(), "gpuheap", &mut text);
        fs::write(file, text)?;
    }
    Ok(())
}
