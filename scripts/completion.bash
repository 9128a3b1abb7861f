# Completion of options for bash: . scripts/completion.bash
# The words come from the programs' own option tables, so they are never out of date.
_phasepipe_programs='tokenize prefill decode stream frames kvstore sched sched-fcfs sched-colocate sched-exec simulate bench'
_phasepipe_commands='chat up down ps top ctl cache tls-init unit-cores env'
_phasepipe_ctl='kv sched drain undrain hand-over role set restart sched-swap'
_phasepipe() {
    local program=$1 words=
    [ "$program" != phasepipe ] || [ "$COMP_CWORD" -eq 1 ] || program="phasepipe ${COMP_WORDS[1]}"
    # shellcheck disable=SC2086 # the program and its first word
    case $2 in
    -*) mapfile -t COMPREPLY < <(compgen -W "$($program --complete 2>/dev/null)" -- "$2") ;;
    *)
        case $program in
        phasepipe) words="$_phasepipe_commands $_phasepipe_programs" ;;
        'phasepipe ctl') words=$_phasepipe_ctl ;;
        esac
        [ -z "$words" ] || mapfile -t COMPREPLY < <(compgen -W "$words" -- "$2")
        ;;
    esac
}
# shellcheck disable=SC2086 # a word each
complete -o default -F _phasepipe $_phasepipe_programs phasepipe
