"""`sidecar completion`: prints the script with which a shell completes commands, options and file names."""

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash, in ~/.bashrc:                  eval "$(sidecar completion bash)"
    zsh, in ~/.zshrc after compinit:     eval "$(sidecar completion zsh)"
    fish, in ~/.config/fish/config.fish: sidecar completion fish | source

    A package installs the output as a file in the shell's own completion folder."""
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(ctx.find_root().command, {}, "sidecar", "_SIDECAR_COMPLETE").source())
